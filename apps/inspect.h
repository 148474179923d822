// What the parts of metroplex inspect share.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "files/file_system.h"

namespace metroplex::apps {

using OrderedJson = nlohmann::ordered_json;

constexpr int kInspectDamaged = 3, kInspectDifferent = 1;

struct InspectOptions {
  std::string path, other;
  bool verify = false, json = false, config = false;
  int64_t iteration = 0;
};

// Of each: name, kind, dtype, shape and, where it is said, the number of pieces.
void print_tensors(const OrderedJson& tensors);
// With --json the object itself, with --verify the problems or `sound`. Returns the exit code.
int report_damage(const InspectOptions& options, OrderedJson json, const std::vector<std::string>& problems,
                  const char* sound = "all checksums agree");

// A Hugging Face directory (inspect_hf.cpp).
int inspect_hf(files::FileSystem& disk, const InspectOptions& options);
// --diff (inspect_diff.cpp).
int inspect_diff(files::FileSystem& disk, const InspectOptions& options);

}  // namespace metroplex::apps

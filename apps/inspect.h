// Shared code of the files of metroplex inspect.
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

// Prints per tensor its name, kind, dtype, shape and, if present, the number of regions.
void print_tensors(const OrderedJson& tensors);
// Prints the object with --json, else the problems or `sound` with --verify. Returns the exit code.
int report_damage(const InspectOptions& options, OrderedJson json, const std::vector<std::string>& problems,
                  const char* sound = "all checksums match");

// A Hugging Face directory (inspect_hf.cpp).
int inspect_hf(files::FileSystem& disk, const InspectOptions& options);
// A checkpoint of Megatron-LM or a folder of them (inspect_megatron.cpp).
int inspect_megatron(files::FileSystem& disk, const InspectOptions& options);
// --diff (inspect_diff.cpp).
int inspect_diff(files::FileSystem& disk, const InspectOptions& options);

}  // namespace metroplex::apps

// The model families: what each one's name presets and what the ground floor has to know of it. How it is built is
// models/registry.h's.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace metroplex::config {

using Preset = std::pair<const char*, const char*>;  // key, value

struct Family {
  const char* name;
  bool top_query;               // the last layer takes its queries from an embedding of the position
  std::vector<Preset> presets;  // for keys that nobody gave
};

std::vector<std::string> family_names();
// Null where there is none of this name.
const Family* find_family(const std::string& name);
// Throws base::Error("config") with the nearest name instead.
const Family& family(const std::string& name);

}  // namespace metroplex::config

#include "base/free_memory.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <sstream>
#include <vector>

namespace metroplex::base {
namespace {

std::optional<int64_t> number(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  return number(word);
}

int64_t sum_files(const std::string& path, const std::array<const char*, 2>& names) {
  std::ifstream file(path);
  int64_t sum = 0;
  for (std::string name, value; file >> name >> value;) {
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += number(value).value_or(0);
  }
  return sum;
}

std::optional<int64_t> available(const std::string& meminfo) {
  std::ifstream file(meminfo);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, kib;
    if (words >> name >> kib && name == "MemAvailable:") {
      if (const auto value = number(kib)) return *value * 1024;
    }
  }
  return std::nullopt;
}

// File names of a memory cgroup, and the reclaimable entries of its usage.
struct Version {
  const char* folder;  // mount point of the hierarchy
  const char* limit;
  const char* usage;
  std::array<const char*, 2> cache;
};
const Version kVersions[] = {
    {"/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"/sys/fs/cgroup/memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}},
    {"/sys/fs/cgroup/unified", "memory.max", "memory.current", {"inactive_file", "active_file"}},
};

bool holds_memory(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "memory") return true;
  }
  return false;
}

// Returns the paths of the process's memory cgroups, one per hierarchy: lines "0::/path" of v2, "4:memory:/path" of
// v1. In a container these may be host paths; the limits at the root of the mount still apply, because every
// search ends there.
std::vector<std::string> memory_cgroups(const std::string& self) {
  std::ifstream file(self);
  std::vector<std::string> paths;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty() || holds_memory(controllers)) paths.push_back(line.substr(second + 1));
  }
  return paths;
}

void lower_to(std::optional<FreeMemory>& least, int64_t bytes, const std::string& from) {
  if (!least || bytes < least->bytes) least = FreeMemory{std::max<int64_t>(0, bytes), from};
}

// Applies the limits of a cgroup and all its ancestors.
void walk_up(const std::string& root, const Version& version, std::string path, std::optional<FreeMemory>& least) {
  while (true) {
    while (path.ends_with('/')) path.pop_back();
    const std::string folder = root + version.folder + path + "/";
    const auto limit = number_in(folder + version.limit), usage = number_in(folder + version.usage);
    if (limit && usage) {
      const int64_t held = *usage - sum_files(folder + "memory.stat", version.cache);
      lower_to(least, *limit - std::max<int64_t>(0, held), version.folder + path + "/" + version.limit);
    }
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::optional<FreeMemory> free_memory(const std::string& root) {
  std::optional<FreeMemory> least;
  const auto kernel = available(root + "/proc/meminfo");
  if (!kernel) return std::nullopt;
  lower_to(least, *kernel, "/proc/meminfo");
  for (const std::string& path : memory_cgroups(root + "/proc/self/cgroup")) {
    for (const Version& version : kVersions) walk_up(root, version, path, least);
  }
  return least;
}

}  // namespace metroplex::base

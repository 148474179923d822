// Memory that a process of this machine can still allocate: the kernel's available memory, limited by the cgroups (v1
// and v2). Page cache counts as free if the kernel can reclaim it; swap does not count.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace metroplex::base {

struct FreeMemory {
  int64_t bytes = 0;
  std::string from;  // source of the limit: "/proc/meminfo", "/sys/fs/cgroup/job/memory.max"
};

// Returns the minimum of all known limits; nullopt if /proc/meminfo is unreadable. `root` is prepended to every
// path, for tests. Missing or invalid limit files are ignored.
std::optional<FreeMemory> free_memory(const std::string& root = "");

}  // namespace metroplex::base

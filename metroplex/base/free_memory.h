// The memory that a process of this machine can still take: what the kernel calls available, and what the limits of
// its cgroups leave, version 1 and 2. Page cache counts as free where the kernel would give it up, swap does not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace metroplex::base {

struct FreeMemory {
  int64_t bytes = 0;
  std::string from;  // what sets it: "/proc/meminfo", "/sys/fs/cgroup/job/memory.max"
};

// The least of all that is known; nothing where /proc/meminfo cannot be read. `root` stands before every path: tests
// hand in a tree of their own. A limit in a file that is not there, or not understood, does not count.
std::optional<FreeMemory> free_memory(const std::string& root = "");

}  // namespace metroplex::base

// Reads the memory and the descriptors of a trial's process while it waits for the result of a system call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/trial.h"

namespace metroplex::megatron {

class ProcessMemory {
 public:
  explicit ProcessMemory(pid_t pid);
  bool readable() const { return file_.get() >= 0; }
  // Returns the zero-terminated text at this address, up to 128 KiB.
  std::string text(uint64_t address) const;
  // Returns the null-terminated array of texts at this address. Stops after 4,096 words or `most_bytes`.
  std::vector<std::string> words(uint64_t address, size_t most_bytes) const;
  bool write(uint64_t address, const void* bytes, size_t size) const;

 private:
  Descriptor file_;
};

// Returns the target of /proc/PID/NAME; empty if it cannot be read.
std::string read_process_link(pid_t pid, const std::string& name);

}  // namespace metroplex::megatron

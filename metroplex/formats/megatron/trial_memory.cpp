#include "megatron/trial_memory.h"

#include <climits>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"

namespace metroplex::megatron {

ProcessMemory::ProcessMemory(pid_t pid)
    : file_(open(base::concat("/proc/", pid, "/mem").c_str(), O_RDWR | O_CLOEXEC)) {}

std::string ProcessMemory::text(uint64_t address) const {
  std::string out;
  while (out.size() < (size_t{128} << 10)) {
    char page[256];
    const size_t wanted = sizeof page - address % sizeof page;  // never crosses the end of a mapping
    const ssize_t got = pread(file_.get(), page, wanted, static_cast<off_t>(address));
    if (got <= 0) break;
    const void* zero = std::memchr(page, 0, static_cast<size_t>(got));
    if (zero != nullptr) return out.append(static_cast<const char*>(page), static_cast<const char*>(zero));
    out.append(page, static_cast<size_t>(got));
    address += static_cast<uint64_t>(got);
  }
  return out;
}

std::vector<std::string> ProcessMemory::words(uint64_t address, size_t most_bytes) const {
  constexpr size_t kMostWords = 4096;
  std::vector<std::string> out;
  size_t bytes = 0;
  for (uint64_t word = 0; out.size() < kMostWords && bytes <= most_bytes; address += sizeof word) {
    const ssize_t got = pread(file_.get(), &word, sizeof word, static_cast<off_t>(address));
    if (got != sizeof word || word == 0) break;
    out.push_back(text(word));
    bytes += out.back().size() + sizeof(std::string);
  }
  return out;
}

bool ProcessMemory::write(uint64_t address, const void* bytes, size_t size) const {
  return pwrite(file_.get(), bytes, size, static_cast<off_t>(address)) == static_cast<ssize_t>(size);
}

std::string read_process_link(pid_t pid, const std::string& name) {
  char path[PATH_MAX];
  const ssize_t length = readlink(base::concat("/proc/", pid, "/", name).c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

}  // namespace metroplex::megatron

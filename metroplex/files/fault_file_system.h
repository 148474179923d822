// A file system that goes wrong on demand, around another one: for tests of everything that writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace metroplex::files {

struct Faults {
  int64_t fail_at_call = -1;   // this call (counted from 0) throws base::Error "Input/output error"
  int64_t crash_at_call = -1;  // this call and all later ones do nothing and throw SimulatedCrash
  int64_t space_bytes = std::numeric_limits<int64_t>::max();  // writes beyond throw "No space left on device"
  bool short_writes = false;                                  // a write takes at most 7 bytes
};

// Not a std::exception: no handler of errors may catch the death of the process.
struct SimulatedCrash {};

// Counts the calls that change or sync something (create, write, sync, close, rename, remove, make_directory,
// sync_directory); reading is free and never fails. Safe to use from several threads.
class FaultFileSystem final : public FileSystem {
 public:
  FaultFileSystem(FileSystem& inner, const Faults& faults) : inner_(inner), faults_(faults) {}

  int64_t calls() const { return calls_; }
  int64_t written_bytes() const { return written_; }

  std::unique_ptr<WritableFile> create(const std::string& path) override;
  Bytes map(const std::string& path) override { return inner_.map(path); }
  std::vector<std::string> list(const std::string& directory) override { return inner_.list(directory); }
  bool exists(const std::string& path) override { return inner_.exists(path); }
  bool is_directory(const std::string& path) override { return inner_.is_directory(path); }
  void rename(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void make_directory(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  std::unique_ptr<FileLock> try_lock(const std::string& path) override { return inner_.try_lock(path); }

 private:
  class File;
  void count(const char* what, const std::string& path);

  FileSystem& inner_;
  Faults faults_;
  std::atomic<int64_t> calls_{0}, written_{0};
};

}  // namespace metroplex::files

// A file system that injects faults into another one, for tests of everything that writes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "files/file_system.h"

namespace metroplex::files {

struct Faults {
  int64_t fail_at_call = -1;   // this call (counted from 0) throws base::Error "Input/output error"
  int64_t crash_at_call = -1;  // this call and all later ones do nothing and throw SimulatedCrash
  int64_t space_bytes = std::numeric_limits<int64_t>::max();  // writes beyond it throw "No space left on device"
  bool short_writes = false;                                  // a write takes at most 7 bytes
  // The file system calls it before each operation with its name and path; it may wait, or throw.
  std::function<void(const std::string& what, const std::string& path)> before = nullptr;
};

// Not a std::exception, so that no error handler catches the death of the process.
struct SimulatedCrash {};

// Counts the calls that change or sync something (create, append, write, sync, close, truncate, rename, remove,
// make_directory, sync_directory); reads are not counted and never fail. Safe to use from several threads.
class FaultFileSystem final : public FileSystem {
 public:
  FaultFileSystem(FileSystem& inner, const Faults& faults) : inner_(inner), faults_(faults) {}

  int64_t calls() const { return calls_; }
  int64_t written_bytes() const { return written_; }

  std::unique_ptr<WritableFile> create(const std::string& path) override;
  std::unique_ptr<WritableFile> append(const std::string& path) override;
  Bytes map(const std::string& path) override { return inner_.map(path); }
  std::vector<std::string> list(const std::string& directory) override { return inner_.list(directory); }
  bool exists(const std::string& path) override { return inner_.exists(path); }
  bool is_directory(const std::string& path) override { return inner_.is_directory(path); }
  std::string canonical(const std::string& path) override { return inner_.canonical(path); }
  std::string write_problem(const std::string& directory) override { return inner_.write_problem(directory); }
  std::optional<size_t> file_size(const std::string& path) override { return inner_.file_size(path); }
  int64_t write_time(const std::string& path) override { return inner_.write_time(path); }
  void truncate(const std::string& path, size_t size) override;
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

class FaultFileSystem::File final : public WritableFile {
 public:
  File(FaultFileSystem& owner, std::unique_ptr<WritableFile> inner, std::string path)
      : owner_(owner), inner_(std::move(inner)), path_(std::move(path)) {}

  size_t write_some(const void* data, size_t size) override {
    owner_.count("write to", path_);
    if (owner_.faults_.short_writes) size = std::min<size_t>(size, 7);
    const int64_t room = owner_.faults_.space_bytes - owner_.written_;
    MPX_CHECK(room > 0, "files", "cannot write to '", path_, "': No space left on device");
    size = std::min<size_t>(size, static_cast<size_t>(room));
    owner_.written_ += static_cast<int64_t>(size);
    return inner_->write_some(data, size);
  }
  void sync() override {
    owner_.count("sync", path_);
    inner_->sync();
  }
  void close() override {
    owner_.count("close", path_);
    inner_->close();
  }

 private:
  FaultFileSystem& owner_;
  std::unique_ptr<WritableFile> inner_;
  std::string path_;
};

inline void FaultFileSystem::count(const char* what, const std::string& path) {
  const int64_t call = calls_++;
  if (faults_.before) faults_.before(what, path);
  if (faults_.crash_at_call >= 0 && call >= faults_.crash_at_call) throw SimulatedCrash{};
  MPX_CHECK(call != faults_.fail_at_call, "files", "cannot ", what, " '", path, "': Input/output error");
}

inline std::unique_ptr<WritableFile> FaultFileSystem::create(const std::string& path) {
  count("create", path);
  return std::make_unique<File>(*this, inner_.create(path), path);
}

inline std::unique_ptr<WritableFile> FaultFileSystem::append(const std::string& path) {
  count("write to", path);
  return std::make_unique<File>(*this, inner_.append(path), path);
}

inline void FaultFileSystem::truncate(const std::string& path, size_t size) {
  count("cut", path);
  inner_.truncate(path, size);
}

inline void FaultFileSystem::rename(const std::string& from, const std::string& to) {
  count("rename", from);
  inner_.rename(from, to);
}

inline void FaultFileSystem::remove(const std::string& path) {
  count("remove", path);
  inner_.remove(path);
}

inline void FaultFileSystem::make_directory(const std::string& path) {
  count("make directory", path);
  inner_.make_directory(path);
}

inline void FaultFileSystem::sync_directory(const std::string& path) {
  count("sync directory", path);
  inner_.sync_directory(path);
}

}  // namespace metroplex::files

#include "files/fault_file_system.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::files {

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

void FaultFileSystem::count(const char* what, const std::string& path) {
  const int64_t call = calls_++;
  if (faults_.crash_at_call >= 0 && call >= faults_.crash_at_call) throw SimulatedCrash{};
  MPX_CHECK(call != faults_.fail_at_call, "files", "cannot ", what, " '", path, "': Input/output error");
}

std::unique_ptr<WritableFile> FaultFileSystem::create(const std::string& path) {
  count("create", path);
  return std::make_unique<File>(*this, inner_.create(path), path);
}

void FaultFileSystem::rename(const std::string& from, const std::string& to) {
  count("rename", from);
  inner_.rename(from, to);
}

void FaultFileSystem::remove(const std::string& path) {
  count("remove", path);
  inner_.remove(path);
}

void FaultFileSystem::make_directory(const std::string& path) {
  count("make directory", path);
  inner_.make_directory(path);
}

void FaultFileSystem::sync_directory(const std::string& path) {
  count("sync directory", path);
  inner_.sync_directory(path);
}

}  // namespace metroplex::files

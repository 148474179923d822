#include "nn/saved_stores.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/error.h"

namespace metroplex::nn {
namespace {

constexpr int64_t kPage = 4096;

int64_t page_align(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

class ScratchFile {
 public:
  explicit ScratchFile(std::string directory) : directory_(std::move(directory)) {
    if (directory_.empty()) directory_ = P_tmpdir;
    fd_ = ::open(directory_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd_ < 0) fd_ = open_and_unlink();  // the file system does not support O_TMPFILE
    MPX_CHECK(fd_ >= 0, "nn", "cannot make a file for activations in memory.offload_directory '", directory_,
              "': ", std::strerror(errno), "; name a folder that exists and may be written to");
  }
  ~ScratchFile() { ::close(fd_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // Returns the offset of an unused range of the file, with disk space allocated.
  int64_t take(int64_t bytes) {
    const int64_t size = page_align(bytes);
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      if (hole->second < size) continue;
      const auto [offset, hole_size] = *hole;
      holes_.erase(hole);
      if (hole_size > size) holes_[offset + size] = hole_size - size;
      return offset;
    }
    const int64_t offset = end_;
    const int error = reserve(offset, size);
    MPX_CHECK(error == 0, "nn", "no space for another ", size, " bytes of activations after ", end_,
              " in memory.offload_directory '", directory_, "': ", std::strerror(error),
              "; name a larger disk, or recompute more and offload less");
    end_ += size;
    return offset;
  }

  void give_back(int64_t offset, int64_t bytes) {
    auto hole = holes_.emplace(offset, page_align(bytes)).first;
    const auto next = std::next(hole);
    if (next != holes_.end() && hole->first + hole->second == next->first) {
      hole->second += next->second;
      holes_.erase(next);
    }
    if (hole == holes_.begin()) return;
    const auto before = std::prev(hole);
    if (before->first + before->second != hole->first) return;
    before->second += hole->second;
    holes_.erase(hole);
  }

  void write(const char* from, int64_t bytes, int64_t offset) {
    while (bytes > 0) {
      const ssize_t count = ::pwrite(fd_, from, static_cast<size_t>(bytes), offset);
      if (count < 0 && errno == EINTR) continue;
      MPX_CHECK(count > 0, "nn", "cannot write activations to memory.offload_directory '", directory_,
                "': ", std::strerror(errno));
      from += count, bytes -= count, offset += count;
    }
  }

  void read(char* to, int64_t bytes, int64_t offset) {
    while (bytes > 0) {
      const ssize_t count = ::pread(fd_, to, static_cast<size_t>(bytes), offset);
      if (count < 0 && errno == EINTR) continue;
      MPX_CHECK(count > 0, "nn", "cannot read activations back from memory.offload_directory '", directory_,
                "': ", count == 0 ? "the file has become shorter" : std::strerror(errno));
      to += count, bytes -= count, offset += count;
    }
  }

  void read_ahead(int64_t bytes, int64_t offset) { ::posix_fadvise(fd_, offset, bytes, POSIX_FADV_WILLNEED); }

 private:
  int open_and_unlink() const {
    std::string path = directory_ + "/metroplex-activations-XXXXXX";
    const int fd = ::mkostemp(path.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(path.c_str());
    return fd;
  }

  int reserve(int64_t offset, int64_t bytes) const {
    int error = EINTR;
    while (error == EINTR) error = ::posix_fallocate(fd_, offset, bytes);
    return error;
  }

  std::string directory_;
  int fd_ = -1;
  int64_t end_ = 0;
  std::map<int64_t, int64_t> holes_;  // offset -> bytes
};

class FileBytes final : public OffloadedBytes {
 public:
  FileBytes(std::shared_ptr<ScratchFile> file, const at::Tensor& bytes)
      : file_(std::move(file)), device_(bytes.device()), bytes_(bytes.numel()), offset_(file_->take(bytes_)) {
    const at::Tensor host_bytes = bytes.cpu();
    file_->write(static_cast<const char*>(host_bytes.const_data_ptr()), bytes_, offset_);
  }
  ~FileBytes() override { file_->give_back(offset_, bytes_); }
  void prefetch() override { file_->read_ahead(bytes_, offset_); }
  at::Tensor fetch() override {
    at::Tensor host_bytes = at::empty({bytes_}, at::TensorOptions().dtype(at::kByte));
    file_->read(static_cast<char*>(host_bytes.mutable_data_ptr()), bytes_, offset_);
    return host_bytes.to(device_);
  }

 private:
  std::shared_ptr<ScratchFile> file_;
  at::Device device_;
  int64_t bytes_, offset_;
};

class FileStore final : public ActivationStore {
 public:
  explicit FileStore(const std::string& directory) : file_(std::make_shared<ScratchFile>(directory)) {}

 private:
  std::unique_ptr<OffloadedBytes> park(const at::Tensor& bytes) override {
    return std::make_unique<FileBytes>(file_, bytes);
  }

  std::shared_ptr<ScratchFile> file_;
};

}  // namespace

std::shared_ptr<ActivationStore> make_file_store(const std::string& directory) {
  return std::make_shared<FileStore>(directory);
}

}  // namespace metroplex::nn

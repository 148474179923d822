#include "files/mmap.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace metroplex::files {

MappedFile::MappedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block us
  MPX_CHECK(fd >= 0, "files", "cannot open '", path, "': ", std::strerror(errno));
  struct stat info;
  const bool known = ::fstat(fd, &info) == 0;
  void* mapped = nullptr;
  int code = known ? 0 : errno;
  const bool regular = known && S_ISREG(info.st_mode);
  if (regular && info.st_size > 0) {
    size_ = static_cast<size_t>(info.st_size);
    mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) code = errno;
  }
  ::close(fd);
  MPX_CHECK(code == 0, "files", "cannot map '", path, "': ", std::strerror(code));
  MPX_CHECK(regular, "files", "'", path, "' is not a regular file");
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace metroplex::files

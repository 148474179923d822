// A file as memory: a read-only map that is released with the object. Pages are read when touched, so opening a
// large file costs nothing, and several rank threads share one copy.
#pragma once

#include <cstddef>
#include <string>

namespace metroplex::files {

class MappedFile {
 public:
  // Maps the whole of a regular file; an empty one has data() == nullptr and size() == 0. Throws base::Error.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace metroplex::files

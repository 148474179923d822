// A temporary folder that is deleted with its object.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace metroplex::test {

class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::temp_directory_path() / "metroplex_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  bool empty() const { return std::filesystem::is_empty(path_); }
  std::string at(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace metroplex::test

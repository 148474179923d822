#include "files/same_file.h"

#include <sys/stat.h>

#include "base/error.h"

namespace metroplex::files {

std::optional<FileId> file_id(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return FileId{info.st_dev, info.st_ino};
}

bool is_same_file(FileSystem& disk, const std::string& left, const std::string& right) {
  const std::optional<FileId> id = file_id(left);
  return disk.canonical(left) == disk.canonical(right) || (id && id == file_id(right));
}

void check_output(FileSystem& disk, const Output& output) {
  const auto& [option, path] = output;
  if (path.empty()) return;
  MPX_CHECK(disk.is_directory(parent_directory(path)), "files", option, " = ", path,
            ": its folder does not exist; create it, or choose another path");
  MPX_CHECK(!disk.is_directory(path), "files", option, " = ", path, " is a directory; choose another path");
}

void check_outputs(FileSystem& disk, const std::vector<Output>& outputs, const std::vector<std::string>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& [option, path] = outputs[i];
    if (path.empty()) continue;
    check_output(disk, outputs[i]);
    for (const std::string& input : inputs) {
      MPX_CHECK(!is_same_file(disk, path, input), "config", option, " = ", path,
                ": must not be an input of the command; choose another path");
    }
    for (size_t k = 0; k < i; ++k) {
      MPX_CHECK(outputs[k].path.empty() || !is_same_file(disk, path, outputs[k].path), "config", option, " = ", path,
                ": must differ from ", outputs[k].option, "; choose another path");
    }
  }
}

}  // namespace metroplex::files

// Identity of files on a real disk, and checks of outputs before a command works for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace metroplex::files {

struct FileId {
  uint64_t device = 0, inode = 0;
  bool operator==(const FileId&) const = default;
};

// Follows links. Returns nothing if there is no such file; a file of another FileSystem than the real disk has no id.
std::optional<FileId> file_id(const std::string& path);

// Compares canonical paths, and ids because of hard links.
bool is_same_file(FileSystem& disk, const std::string& left, const std::string& right);

struct Output {
  std::string option, path;  // path empty: not requested
};
// Throws base::Error("files") if the folder of `path` does not exist, or `path` is a directory.
void check_output(FileSystem& disk, const Output& output);
// The same for all, and base::Error("config") if an output would replace an input or another output.
void check_outputs(FileSystem& disk, const std::vector<Output>& outputs, const std::vector<std::string>& inputs);

}  // namespace metroplex::files

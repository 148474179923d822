// Removes a directory tree by file descriptors, so no name is resolved twice. If a folder is replaced by a link
// before it is opened, the removal fails instead of leaving the tree.
#include "files/file_system.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace metroplex::files {
namespace {

[[noreturn]] void cannot_remove(const std::string& path) {
  base::throw_error("files", base::concat("cannot remove '", path, "': ", std::strerror(errno)));
}

class OpenFolder {
 public:
  OpenFolder(int parent, const char* name, const std::string& path) {
    const int fd = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) cannot_remove(path);
    stream_ = ::fdopendir(fd);
    if (stream_ == nullptr) {
      ::close(fd);
      cannot_remove(path);
    }
  }
  ~OpenFolder() { ::closedir(stream_); }
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;

  int fd() const { return ::dirfd(stream_); }
  std::vector<std::string> names(const std::string& path) {
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(stream_);
      if (entry == nullptr && errno != 0) cannot_remove(path);
      if (entry == nullptr) return names;
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
  }

 private:
  DIR* stream_ = nullptr;
};

void remove_at(int parent, const char* name, const std::string& path) {
  struct stat info;
  if (::fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) != 0) cannot_remove(path);
  const bool folder = S_ISDIR(info.st_mode);
  if (folder) {
    OpenFolder inside(parent, name, path);
    for (const std::string& entry : inside.names(path)) remove_at(inside.fd(), entry.c_str(), join_path(path, entry));
  }
  if (::unlinkat(parent, name, folder ? AT_REMOVEDIR : 0) != 0) cannot_remove(path);
}

}  // namespace

void PosixFileSystem::remove_tree(const std::string& path) {
  std::string bare = path;  // with a trailing slash, a link would resolve to its target
  while (bare.size() > 1 && bare.back() == '/') bare.pop_back();
  remove_at(AT_FDCWD, bare.c_str(), bare);
}

}  // namespace metroplex::files

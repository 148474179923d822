#include "files/file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

namespace metroplex::files {
namespace {

constexpr const char* kUnfinished = ".unfinished";  // marks a directory that make_whole has not completed

[[noreturn]] void fail(const char* what, const std::string& path, int code) {
  base::throw_error("files", base::concat("cannot ", what, " '", path, "': ", std::strerror(code)));
}

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  int fd;
  do fd = ::open(path, flags | O_CLOEXEC, mode);
  while (fd < 0 && errno == EINTR);
  return fd;
}

bool is_at(int fd, const std::string& path) {
  struct stat held, named;
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

// A read-only memory map, released with the object. Pages are read on access, so opening a large file is cheap and
// rank threads share one copy.
class MappedFile {
 public:
  // Maps a complete regular file. An empty one has data() == nullptr and size() == 0. Throws base::Error.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

MappedFile::MappedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // opening a pipe must not block
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

class PosixFile final : public WritableFile {
 public:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixFile() override {
    if (fd_ >= 0) ::close(fd_);
  }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  size_t write_some(const void* data, size_t size) override {
    constexpr size_t kMost = size_t{1} << 30;  // Linux accepts at most 2 GiB - 4096 per call
    for (;;) {
      const ssize_t n = ::write(fd_, data, std::min(size, kMost));
      if (n > 0) return static_cast<size_t>(n);
      if (n == 0) fail("write to", path_, ENOSPC);
      if (errno != EINTR) fail("write to", path_, errno);
    }
  }
  void sync() override {
    while (::fsync(fd_) != 0) {
      if (errno != EINTR) fail("sync", path_, errno);
    }
  }
  void close() override {
    const int fd = fd_;
    fd_ = -1;
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail("close", path_, errno);
  }

 private:
  int fd_;
  std::string path_;
};

class PosixLock final : public FileLock {
 public:
  explicit PosixLock(int fd) : fd_(fd) {}
  ~PosixLock() override { ::close(fd_); }
  PosixLock(const PosixLock&) = delete;
  PosixLock& operator=(const PosixLock&) = delete;

 private:
  int fd_;
};

}  // namespace

void WritableFile::write(const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const size_t n = write_some(at, size);
    MPX_ASSERT(n > 0 && n <= size, "a write of ", n, " bytes out of ", size);
    at += n;
    size -= n;
  }
}

std::string parent_directory(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string base_name(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::string join_path(const std::string& directory, const std::string& name) {
  if (directory.empty()) return name;
  return directory.back() == '/' ? directory + name : directory + "/" + name;
}

void FileSystem::make_directories(const std::string& path) {
  if (path.empty() || is_directory(path)) return;
  if (path.back() == '/') return make_directories(path.substr(0, path.size() - 1));
  const std::string parent = parent_directory(path);
  make_directories(parent);
  make_directory(path);
  sync_directory(parent);
}

// For file systems without links.
void FileSystem::remove_tree(const std::string& path) {
  if (is_directory(path)) {
    for (const std::string& name : list(path)) remove_tree(join_path(path, name));
  }
  remove(path);
}

std::string FileSystem::read(const std::string& path) { return std::string(map(path).text()); }

std::string FileSystem::make_problem(const std::string& path) {
  std::string there = canonical(path);
  while (!exists(there) && there != parent_directory(there)) there = parent_directory(there);
  if (!is_directory(there)) return there + " is not a directory";
  const std::string problem = write_problem(there);
  return problem.empty() ? "" : "cannot write in " + there + " (" + problem + ")";
}

void FileSystem::check_new_directory(const std::string& path) {
  MPX_CHECK(!path.empty(), "files", "the output directory has no name; pass its path");
  MPX_CHECK(!exists(path), "files", "'", path, "' already exists; choose another directory");
  const std::string problem = make_problem(path);
  MPX_CHECK(problem.empty(), "files", "'", path, "' cannot be created: ", problem, "; choose another directory");
}

void FileSystem::remove_quietly(const std::string& path) {
  try {
    if (exists(path)) remove_tree(path);
  } catch (const base::Error&) {  // the original error is more specific
  }
}

void FileSystem::make_whole(const std::string& path, const std::function<void(const std::string& part)>& write) {
  const std::string part = part_path(path), mark = join_path(part, kUnfinished), lock_file = part + ".lock";
  make_directories(parent_directory(path));
  const auto lock = try_lock(lock_file);
  MPX_CHECK(lock != nullptr, "files", "another run is writing '", path,
            "'; wait until it finishes, or choose another directory");
  bool ours = false;
  try {
    MPX_CHECK(!exists(path), "files", "'", path, "' already exists; choose another directory");
    if (exists(part)) {
      ours = is_directory(part) && (exists(mark) || list(part).empty());
      MPX_CHECK(ours, "files", "'", part, "' already exists, and '", path,
                "' is written there first; move it, or choose another directory");
      remove_tree(part);
    }
    ours = true;
    make_directories(part);
    create(mark)->close();
    write(part);
    remove(mark);
    rename(part, path);
  } catch (const base::Error&) {
    if (ours) remove_quietly(part);
    remove_quietly(lock_file);
    throw;
  }
  remove_quietly(lock_file);
  sync_directory(parent_directory(path));
}

void FileSystem::replace_file(const std::string& path, std::string_view text) {
  const std::string part = part_path(path);
  auto file = create(part);
  try {
    file->write(text.data(), text.size());
    file->sync();
    file->close();
    rename(part, path);
  } catch (const base::Error&) {  // frees the space of the incomplete file
    file.reset();
    remove_quietly(part);
    throw;
  }
  sync_directory(parent_directory(path));
}

void FileSystem::write_output(const std::string& path, std::string_view text) {
  if (!exists(path)) return replace_file(path, text);
  if (file_size(path)) return replace_file(canonical(path), text);
  const auto file = append(path);
  file->write(text.data(), text.size());
  file->close();
}

std::unique_ptr<WritableFile> PosixFileSystem::create(const std::string& path) {
  const int fd = open_retrying(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (fd < 0) fail("create", path, errno);
  return std::make_unique<PosixFile>(fd, path);
}

std::unique_ptr<WritableFile> PosixFileSystem::append(const std::string& path) {
  const int fd = open_retrying(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
  if (fd < 0) fail("write to", path, errno);
  return std::make_unique<PosixFile>(fd, path);
}

Bytes PosixFileSystem::map(const std::string& path) {
  auto mapped = std::make_shared<const MappedFile>(path);
  return {mapped->data(), mapped->size(), mapped};
}

std::vector<std::string> PosixFileSystem::list(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator it(directory, error), end;
  for (; !error && it != end; it.increment(error)) names.push_back(it->path().filename().string());
  if (error) fail("list", directory, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

bool PosixFileSystem::exists(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) fail("stat", path, errno);
  return false;
}

bool PosixFileSystem::is_directory(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) return S_ISDIR(info.st_mode);
  if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP) fail("stat", path, errno);
  return false;
}

std::string PosixFileSystem::canonical(const std::string& path) {
  std::error_code error;
  std::filesystem::path out = std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
  if (error) out = std::filesystem::path(path).lexically_normal();
  return (out.has_filename() ? out : out.parent_path()).string();
}

std::string PosixFileSystem::write_problem(const std::string& directory) {
  std::string trial = join_path(directory, ".trial-XXXXXX");
  if (::access(directory.c_str(), W_OK | X_OK) != 0 || ::mkdtemp(trial.data()) == nullptr)
    return std::strerror(errno);
  ::rmdir(trial.c_str());
  return "";
}

std::optional<size_t> PosixFileSystem::file_size(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0)
    return S_ISREG(info.st_mode) ? std::optional(static_cast<size_t>(info.st_size)) : std::nullopt;
  if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP) fail("stat", path, errno);
  return std::nullopt;
}

int64_t PosixFileSystem::write_time(const std::string& path) {
  std::error_code none;
  const auto time = std::filesystem::last_write_time(path, none);
  return none ? 0 : static_cast<int64_t>(time.time_since_epoch().count());
}

void PosixFileSystem::truncate(const std::string& path, size_t size) {
  while (::truncate(path.c_str(), static_cast<off_t>(size)) != 0) {
    if (errno != EINTR) fail("truncate", path, errno);
  }
}

void PosixFileSystem::rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int code = errno;
    base::throw_error("files", base::concat("cannot rename '", from, "' to '", to, "': ", std::strerror(code)));
  }
}

void PosixFileSystem::remove(const std::string& path) {
  if (::remove(path.c_str()) != 0) fail("remove", path, errno);
}

void PosixFileSystem::make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return;
  const int code = errno;
  if (code != EEXIST || !is_directory(path)) fail("create directory", path, code);
}

void PosixFileSystem::sync_directory(const std::string& path) {
  const int fd = open_retrying(path.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) fail("open directory", path, errno);
  const int result = ::fsync(fd);
  const int code = errno;
  ::close(fd);
  // Some network file systems have no fsync for directories; their server orders the names itself.
  if (result != 0 && code != EINVAL) fail("sync directory", path, code);
}

std::unique_ptr<FileLock> PosixFileSystem::try_lock(const std::string& path) {
  constexpr int kMostAttempts = 100;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    const int fd = open_retrying(path.c_str(), O_RDWR | O_CREAT, 0666);
    if (fd < 0) fail("open", path, errno);
    auto lock = std::make_unique<PosixLock>(fd);
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) {
      if (is_at(fd, path)) return lock;
      continue;  // the holder removed the file: another process may lock a new one
    }
    if (errno == EWOULDBLOCK) return nullptr;
    for (const int no_locks :
         {ENOLCK, ENOTSUP, ENOSYS, EINVAL}) {  // file systems without locks, such as Lustre without flock
      if (errno == no_locks) return lock;
    }
    fail("lock", path, errno);
  }
  return nullptr;
}

}  // namespace metroplex::files

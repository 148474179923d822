// The file system as an argument. Code whose output must survive a crash takes a FileSystem: the real one
// (PosixFileSystem), or in tests one in memory that simulates a power failure, or one that injects faults
// (tests/files/memory_file_system.h, fault_file_system.h). Every failure is a base::Error of module "files" with path
// and cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace metroplex::files {

// Read-only bytes of a complete file, valid while `owner` lives (a memory map on a real disk).
struct Bytes {
  const std::byte* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> owner;

  std::string_view text() const { return {reinterpret_cast<const char*>(data), size}; }
};

class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Appends between 1 and `size` bytes and returns their number.
  virtual size_t write_some(const void* data, size_t size) = 0;
  // Returns when all written data would survive a power failure.
  virtual void sync() = 0;
  virtual void close() = 0;

  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
};

// Held until destruction or the end of the process, including a kill.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Creates a file or truncates an existing one. Its name survives a power failure after sync_directory(parent).
  virtual std::unique_ptr<WritableFile> create(const std::string& path) = 0;
  // Opens for appending; creates a missing file. Does not truncate, and `path` may be a pipe or a device.
  virtual std::unique_ptr<WritableFile> append(const std::string& path) = 0;
  virtual Bytes map(const std::string& path) = 0;
  // Returns the sorted names in a directory, without . and ..
  virtual std::vector<std::string> list(const std::string& directory) = 0;
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_directory(const std::string& path) = 0;
  // Returns the absolute path without links, dots and a trailing slash. Components that do not exist are kept
  // unchanged.
  virtual std::string canonical(const std::string& path) = 0;
  // Returns why nothing can be created in a directory, as a system message; "" if it is writable. Permissions are not
  // sufficient (/proc, a full disk), so it creates a hidden temporary entry.
  virtual std::string write_problem(const std::string& directory) = 0;
  // Returns the bytes of a regular file, following links; nothing if there is none.
  virtual std::optional<size_t> file_size(const std::string& path) = 0;
  // Returns the last modification time in a unit of the file system; 0 if unknown.
  virtual int64_t write_time(const std::string& path) = 0;
  // Truncates a file to its first `size` bytes. The file must have at least that size.
  virtual void truncate(const std::string& path, size_t size) = 0;
  // Atomic. Replaces a file, or an empty directory if `from` is a directory.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Removes a file or an empty directory.
  virtual void remove(const std::string& path) = 0;
  // Creates one level; no-op if it exists.
  virtual void make_directory(const std::string& path) = 0;
  // Returns when the names in `path` (created, renamed, removed) would survive a power failure.
  virtual void sync_directory(const std::string& path) = 0;
  // Returns nullptr if another holder has the lock of this file. Creates a missing file.
  virtual std::unique_ptr<FileLock> try_lock(const std::string& path) = 0;

  // Returns why nothing can be created at `path`, with the folder that causes the problem; "" if it can. The path
  // need not exist.
  std::string make_problem(const std::string& path);
  // Throws base::Error if `path` exists or cannot be created.
  void check_new_directory(const std::string& path);
  // Creates all levels of `path`, each durable in its parent.
  void make_directories(const std::string& path);
  // Removes a file, or a directory with its contents. Removes symbolic links, as `path` and inside it, but never
  // their targets.
  virtual void remove_tree(const std::string& path);
  // The same without exceptions, for use during error handling.
  void remove_quietly(const std::string& path);
  // Creates a directory atomically: `write` fills part_path(path), which is then renamed, or removed on an error.
  // First removes the leftover of a crash, which contains a marker file. Throws base::Error for any other content
  // there.
  void make_whole(const std::string& path, const std::function<void(const std::string& part)>& write);
  std::string read(const std::string& path);
  // Replaces a file atomically: after any crash `path` has either its old content or all of `text`. Writes
  // part_path(path), syncs, renames and syncs the parent. A crash may leave part_path(path); an error does not.
  void replace_file(const std::string& path, std::string_view text);
  // The same for a user-specified path: keeps a symbolic link and replaces its target; writes to a pipe or a device
  // directly.
  void write_output(const std::string& path, std::string_view text);
};

class PosixFileSystem final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const std::string& path) override;
  std::unique_ptr<WritableFile> append(const std::string& path) override;
  Bytes map(const std::string& path) override;
  std::vector<std::string> list(const std::string& directory) override;
  bool exists(const std::string& path) override;
  bool is_directory(const std::string& path) override;
  std::string canonical(const std::string& path) override;
  std::string write_problem(const std::string& directory) override;
  std::optional<size_t> file_size(const std::string& path) override;
  int64_t write_time(const std::string& path) override;
  void truncate(const std::string& path, size_t size) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void make_directory(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  std::unique_ptr<FileLock> try_lock(const std::string& path) override;
  void remove_tree(const std::string& path) override;
};

// "a/b" -> "a/b.part"
inline std::string part_path(const std::string& path) { return path + ".part"; }
// "a/b/c" -> "a/b"; "c" -> "."; "/c" -> "/".
std::string parent_directory(const std::string& path);
// "a/b/c" -> "c".
std::string base_name(const std::string& path);
std::string join_path(const std::string& directory, const std::string& name);

}  // namespace metroplex::files

// The disk as an argument. Whoever writes something that must survive a crash takes a FileSystem: the real one
// (PosixFileSystem); in tests one in memory that knows what a power cut would keep, or one that fails on demand
// around another (tests/files/memory_file_system.h, fault_file_system.h). Every failure is a base::Error of room
// "files" naming path and cause.
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

// Read-only bytes of a whole file; the owner keeps them valid (a memory map on a real disk).
struct Bytes {
  const std::byte* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> owner;

  std::string_view text() const { return {reinterpret_cast<const char*>(data), size}; }
};

class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Appends at least one byte and at most `size`; returns how many.
  virtual size_t write_some(const void* data, size_t size) = 0;
  // Returns when everything written so far would survive a power cut.
  virtual void sync() = 0;
  virtual void close() = 0;

  // Appends all of it.
  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
};

// Held until destroyed, or until the process dies in whatever way.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // A new file, or an existing one cut to nothing. Its name survives a power cut after sync_directory(parent).
  virtual std::unique_ptr<WritableFile> create(const std::string& path) = 0;
  // To write behind what is there; made if missing. Nothing is cut off, and `path` may be a pipe or a device.
  virtual std::unique_ptr<WritableFile> append(const std::string& path) = 0;
  virtual Bytes map(const std::string& path) = 0;
  // Names in a directory (without . and ..), sorted.
  virtual std::vector<std::string> list(const std::string& directory) = 0;
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_directory(const std::string& path) = 0;
  // `path` from the root, without links, dots and a slash at the end; what does not exist of it is kept as it is.
  virtual std::string canonical(const std::string& path) = 0;
  // Why nothing can be made in a directory, in the system's words; "" where it can. Rights do not tell (/proc, a full
  // disk), so something is made there for a moment, under a hidden name.
  virtual std::string write_problem(const std::string& directory) = 0;
  // Bytes of a regular file, through links; nothing where there is none.
  virtual std::optional<size_t> file_size(const std::string& path) = 0;
  // When a file was last written, in a unit of the file system's own; 0 where it does not know.
  virtual int64_t write_time(const std::string& path) = 0;
  // Cuts a file to its first `size` bytes, of which it has at least as many.
  virtual void truncate(const std::string& path, size_t size) = 0;
  // Atomic; replaces a file, or an empty directory by a directory.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // A file or an empty directory.
  virtual void remove(const std::string& path) = 0;
  // One level; nothing happens when it is there already.
  virtual void make_directory(const std::string& path) = 0;
  // Returns when the names in `path` (created, renamed, removed) would survive a power cut.
  virtual void sync_directory(const std::string& path) = 0;
  // nullptr when someone else holds the lock of this file, which is made if missing.
  virtual std::unique_ptr<FileLock> try_lock(const std::string& path) = 0;

  // Why nothing can be made at `path`, of which the end need not exist, with the folder that is in the way; "" where
  // it can.
  std::string make_problem(const std::string& path);
  // Throws base::Error where `path` is there already or cannot be made.
  void check_new_directory(const std::string& path);
  // All levels of `path`, each made durable in its parent.
  void make_directories(const std::string& path);
  // A file, or a directory with all that is in it. A symbolic link is removed, as `path` and anywhere in it, and
  // never what it points to.
  virtual void remove_tree(const std::string& path);
  // The same where an error is already under way: another one is not told.
  void remove_quietly(const std::string& path);
  // A new directory, whole or not at all: `write` makes it as part_path(path), which is then renamed, and goes on an
  // error. What a crash left there before is removed first, known by a mark in it; anything else is left alone:
  // base::Error.
  void make_whole(const std::string& path, const std::function<void(const std::string& part)>& write);
  std::string read(const std::string& path);
  // `path` holds either its old content or all of `text`, at every moment and after any crash: written beside it as
  // part_path(path), which a crash may leave and an error does not, synced, renamed, parent synced.
  void replace_file(const std::string& path, std::string_view text);
  // The same of a path that a user has named: through a symbolic link, which stays; a pipe or a device is written to.
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

// A disk in memory that keeps two books: what a running program sees, and what a power cut would leave. Bytes become
// durable by sync of the file, names by sync_directory of their directory; a cut keeps nothing more than that, or any
// part of the rest. For tests of what must survive; safe to use from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace metroplex::files {

class MemoryFileSystem final : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  std::unique_ptr<WritableFile> create(const std::string& path) override;
  Bytes map(const std::string& path) override;
  std::vector<std::string> list(const std::string& directory) override;
  bool exists(const std::string& path) override;
  bool is_directory(const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void make_directory(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  std::unique_ptr<FileLock> try_lock(const std::string& path) override;

  // What the disk would hold after a power cut now. seed 0: only what is durable. Any other seed: besides, of each
  // directory a random prefix of the changes of names that were not synced, of each file a random prefix of the bytes
  // (random bytes or zeros may stand where the rest was to be). Locks are free.
  std::unique_ptr<MemoryFileSystem> after_power_cut(uint64_t seed) const;
  // The same disk after the program alone died: everything written is there.
  std::unique_ptr<MemoryFileSystem> after_kill() const;
  void flip_bit(const std::string& path, uint64_t bit);

  struct Node;

 private:
  struct Locks;
  std::shared_ptr<Node> find(const std::string& path) const;     // nullptr when missing
  std::shared_ptr<Node> require(const std::string& path) const;  // throws
  std::shared_ptr<Node> directory_of(const std::string& path) const;

  mutable std::mutex mutex_;
  std::shared_ptr<Node> root_;
  std::shared_ptr<Locks> locks_;
};

}  // namespace metroplex::files

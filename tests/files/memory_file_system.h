// A disk in memory with two states: the one that a running program sees, and the one after a power cut. A sync of a
// file makes its bytes durable, sync_directory makes the names in that directory durable. A power cut preserves only
// that, or in addition any part of the rest. For tests of durability; safe to use from several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "files/file_system.h"

namespace metroplex::files {

class MemoryFileSystem : public FileSystem {
 public:
  MemoryFileSystem();
  ~MemoryFileSystem() override;

  std::unique_ptr<WritableFile> create(const std::string& path) override;
  std::unique_ptr<WritableFile> append(const std::string& path) override;
  Bytes map(const std::string& path) override;
  std::vector<std::string> list(const std::string& directory) override;
  bool exists(const std::string& path) override;
  bool is_directory(const std::string& path) override;
  // There are no links, and all paths are writable.
  std::string canonical(const std::string& path) override;
  std::string write_problem(const std::string&) override { return ""; }
  std::optional<size_t> file_size(const std::string& path) override;
  int64_t write_time(const std::string&) override { return 0; }
  void truncate(const std::string& path, size_t size) override;
  void rename(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void make_directory(const std::string& path) override;
  void sync_directory(const std::string& path) override;
  std::unique_ptr<FileLock> try_lock(const std::string& path) override;

  // Contents of the disk after a power cut now. seed 0: only the durable state. Any other seed adds unsynced changes.
  // Each directory gets a random prefix (odd seeds) or subset (even seeds) of the name changes. Each file gets a
  // random prefix of the bytes, with random bytes or zeros in place of the rest. Locks are free.
  std::unique_ptr<MemoryFileSystem> after_power_cut(uint64_t seed) const;
  // The same disk after only the program died: all writes are there.
  std::unique_ptr<MemoryFileSystem> after_kill() const;
  void flip_bit(const std::string& path, uint64_t bit);

  struct Node;

 private:
  struct Locks;
  std::shared_ptr<Node> find(const std::string& path) const;     // nullptr if missing
  std::shared_ptr<Node> require(const std::string& path) const;  // throws
  std::shared_ptr<Node> directory_of(const std::string& path) const;
  std::shared_ptr<Node> file_at(const std::string& path) const;  // creates it if missing

  mutable std::mutex mutex_;
  std::shared_ptr<Node> root_;
  std::shared_ptr<Locks> locks_;
};

using NodePointer = std::shared_ptr<MemoryFileSystem::Node>;
using Names = std::map<std::string, NodePointer>;

struct MemoryFileSystem::Node {
  // A name that now refers to `node`, or to nothing (nullptr).
  struct Change {
    std::string name;
    NodePointer node;
    uint64_t operation = 0;  // above 0; the two changes of a rename share one
  };
  bool directory = false;
  std::string bytes, durable_bytes;
  Names names, durable_names;
  std::vector<Change> unsynced;  // names: durable_names -> names
  uint64_t operations = 0;

  void set(const std::string& name, NodePointer node, bool same_operation = false) {
    if (node == nullptr) {
      names.erase(name);
    } else {
      names[name] = node;
    }
    operations += same_operation ? 0 : 1;
    unsynced.push_back({name, std::move(node), operations});
  }
};

inline std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  std::string part;
  for (const char c : path + "/") {
    if (c != '/') {
      part += c;
    } else if (!part.empty()) {
      if (part != ".") parts.push_back(part);
      part.clear();
    }
  }
  return parts;
}

class MemoryFile final : public WritableFile {
 public:
  MemoryFile(NodePointer node, std::mutex& mutex) : node_(std::move(node)), mutex_(mutex) {}
  size_t write_some(const void* data, size_t size) override {
    const std::lock_guard guard(mutex_);
    node_->bytes.append(static_cast<const char*>(data), size);
    return size;
  }
  void sync() override {
    const std::lock_guard guard(mutex_);
    node_->durable_bytes = node_->bytes;
  }
  void close() override {}

 private:
  NodePointer node_;
  std::mutex& mutex_;
};

inline std::string surviving_bytes(const MemoryFileSystem::Node& node, std::mt19937_64* random) {
  if (random == nullptr || node.bytes == node.durable_bytes) return node.durable_bytes;
  std::string bytes = node.bytes.substr(0, (*random)() % (node.bytes.size() + 1));
  if ((*random)() % 2 == 0) return bytes;
  const bool zeros = (*random)() % 2 == 0;  // the length reached the disk, the bytes did not
  while (bytes.size() < node.bytes.size()) bytes += zeros ? '\0' : static_cast<char>((*random)());
  return bytes;
}

// With `any_subset` each operation survives independently of its neighbors; a rename survives as a whole.
inline NodePointer surviving(const MemoryFileSystem::Node& node, std::mt19937_64* random, bool any_subset) {
  auto copy = std::make_shared<MemoryFileSystem::Node>();
  copy->directory = node.directory;
  if (!node.directory) {
    copy->bytes = copy->durable_bytes = surviving_bytes(node, random);
    return copy;
  }
  Names names = node.durable_names;
  const size_t count = node.unsynced.size(), prefix = random == nullptr ? 0 : (*random)() % (count + 1);
  uint64_t operation = 0, kept_operation = 0;
  for (size_t i = 0; i < count; ++i) {
    if (any_subset && node.unsynced[i].operation != operation) {
      operation = node.unsynced[i].operation;
      kept_operation = (*random)() % 2 == 0 ? operation : 0;
    }
    const bool kept = any_subset ? operation == kept_operation : i < prefix;
    if (!kept) continue;
    if (node.unsynced[i].node == nullptr) {
      names.erase(node.unsynced[i].name);
    } else {
      names[node.unsynced[i].name] = node.unsynced[i].node;
    }
  }
  for (const auto& [name, child] : names) copy->names[name] = surviving(*child, random, any_subset);
  copy->durable_names = copy->names;
  return copy;
}

inline NodePointer all_of(const MemoryFileSystem::Node& node) {
  auto copy = std::make_shared<MemoryFileSystem::Node>();
  copy->directory = node.directory;
  copy->bytes = copy->durable_bytes = node.bytes;
  for (const auto& [name, child] : node.names) copy->names[name] = all_of(*child);
  copy->durable_names = copy->names;
  return copy;
}

struct MemoryFileSystem::Locks {
  std::mutex mutex;
  std::set<std::string> held;
};

class MemoryLock final : public FileLock {
 public:
  explicit MemoryLock(std::function<void()> release) : release_(std::move(release)) {}
  ~MemoryLock() override { release_(); }

 private:
  std::function<void()> release_;
};

inline MemoryFileSystem::MemoryFileSystem() : root_(std::make_shared<Node>()), locks_(std::make_shared<Locks>()) {
  root_->directory = true;
}
inline MemoryFileSystem::~MemoryFileSystem() = default;

inline NodePointer MemoryFileSystem::find(const std::string& path) const {
  NodePointer node = root_;
  for (const std::string& part : parts_of(path)) {
    const auto it = node->names.find(part);
    if (it == node->names.end()) return nullptr;
    node = it->second;
  }
  return node;
}

inline NodePointer MemoryFileSystem::require(const std::string& path) const {
  NodePointer node = find(path);
  MPX_CHECK(node != nullptr, "files", "cannot open '", path, "': No such file or directory");
  return node;
}

inline NodePointer MemoryFileSystem::directory_of(const std::string& path) const {
  NodePointer node = require(parent_directory(path));
  MPX_CHECK(node->directory, "files", "'", parent_directory(path), "' is not a directory");
  return node;
}

inline NodePointer MemoryFileSystem::file_at(const std::string& path) const {
  const NodePointer parent = directory_of(path);
  NodePointer node = find(path);
  if (node == nullptr) {
    node = std::make_shared<Node>();
    parent->set(base_name(path), node);
  }
  MPX_CHECK(!node->directory, "files", "cannot create '", path, "': Is a directory");
  return node;
}

inline std::unique_ptr<WritableFile> MemoryFileSystem::create(const std::string& path) {
  const std::lock_guard guard(mutex_);
  const NodePointer node = file_at(path);
  node->bytes.clear();
  return std::make_unique<MemoryFile>(node, mutex_);
}

inline std::unique_ptr<WritableFile> MemoryFileSystem::append(const std::string& path) {
  const std::lock_guard guard(mutex_);
  return std::make_unique<MemoryFile>(file_at(path), mutex_);
}

inline std::optional<size_t> MemoryFileSystem::file_size(const std::string& path) {
  const std::lock_guard guard(mutex_);
  const NodePointer node = find(path);
  return node == nullptr || node->directory ? std::nullopt : std::optional(node->bytes.size());
}

inline void MemoryFileSystem::truncate(const std::string& path, size_t size) {
  const std::lock_guard guard(mutex_);
  require(path)->bytes.resize(size);
}

inline Bytes MemoryFileSystem::map(const std::string& path) {
  const std::lock_guard guard(mutex_);
  const NodePointer node = require(path);
  MPX_CHECK(!node->directory, "files", "'", path, "' is not a regular file");
  auto bytes = std::make_shared<const std::string>(node->bytes);
  return {reinterpret_cast<const std::byte*>(bytes->data()), bytes->size(), bytes};
}

inline std::vector<std::string> MemoryFileSystem::list(const std::string& directory) {
  const std::lock_guard guard(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, child] : require(directory)->names) names.push_back(name);
  return names;
}

inline bool MemoryFileSystem::exists(const std::string& path) {
  const std::lock_guard guard(mutex_);
  return find(path) != nullptr;
}

inline bool MemoryFileSystem::is_directory(const std::string& path) {
  const std::lock_guard guard(mutex_);
  const NodePointer node = find(path);
  return node != nullptr && node->directory;
}

inline std::string MemoryFileSystem::canonical(const std::string& path) {
  const std::filesystem::path out = ("/" / std::filesystem::path(path)).lexically_normal();
  return (out.has_filename() ? out : out.parent_path()).string();
}

inline void MemoryFileSystem::rename(const std::string& from, const std::string& to) {
  const std::lock_guard guard(mutex_);
  const NodePointer node = require(from), old = find(to);
  MPX_CHECK(old == nullptr || (old->directory == node->directory && old->names.empty()), "files", "cannot rename '",
            from, "' to '", to, "': Directory not empty");
  const NodePointer source = directory_of(from), target = directory_of(to);
  MPX_ASSERT(source == target, "a rename across directories: '", from, "' to '", to, "'");
  // Two changes: a power cut between them leaves the node under both names, which POSIX allows.
  source->set(base_name(to), node);
  source->set(base_name(from), nullptr, /*same_operation=*/true);
}

inline void MemoryFileSystem::remove(const std::string& path) {
  const std::lock_guard guard(mutex_);
  MPX_CHECK(require(path)->names.empty(), "files", "cannot remove '", path, "': Directory not empty");
  directory_of(path)->set(base_name(path), nullptr);
}

inline void MemoryFileSystem::make_directory(const std::string& path) {
  const std::lock_guard guard(mutex_);
  const NodePointer node = find(path);
  MPX_CHECK(node == nullptr || node->directory, "files", "cannot create directory '", path, "': File exists");
  if (node != nullptr) return;
  auto made = std::make_shared<Node>();
  made->directory = true;
  directory_of(path)->set(base_name(path), made);
}

inline void MemoryFileSystem::sync_directory(const std::string& path) {
  const std::lock_guard guard(mutex_);
  const NodePointer node = require(path);
  node->durable_names = node->names;
  node->unsynced.clear();
}

inline std::unique_ptr<FileLock> MemoryFileSystem::try_lock(const std::string& path) {
  const std::lock_guard guard(mutex_);
  if (find(path) == nullptr) directory_of(path)->set(base_name(path), std::make_shared<Node>());
  const std::lock_guard locks_guard(locks_->mutex);
  if (!locks_->held.insert(path).second) return nullptr;
  return std::make_unique<MemoryLock>([locks = locks_, path] {
    const std::lock_guard release_guard(locks->mutex);
    locks->held.erase(path);
  });
}

inline std::unique_ptr<MemoryFileSystem> MemoryFileSystem::after_power_cut(uint64_t seed) const {
  const std::lock_guard guard(mutex_);
  std::mt19937_64 random(seed);
  auto copy = std::make_unique<MemoryFileSystem>();
  copy->root_ = surviving(*root_, seed == 0 ? nullptr : &random, seed != 0 && seed % 2 == 0);
  return copy;
}

inline std::unique_ptr<MemoryFileSystem> MemoryFileSystem::after_kill() const {
  const std::lock_guard guard(mutex_);
  auto copy = std::make_unique<MemoryFileSystem>();
  copy->root_ = all_of(*root_);
  return copy;
}

inline void MemoryFileSystem::flip_bit(const std::string& path, uint64_t bit) {
  const std::lock_guard guard(mutex_);
  const NodePointer node = require(path);
  node->bytes.at(bit / 8) = static_cast<char>(node->bytes[bit / 8] ^ (1 << (bit % 8)));
  node->durable_bytes = node->bytes;
}

}  // namespace metroplex::files

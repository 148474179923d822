// Inside of the gloo backend: the store, the watch over the other processes, and the meshes. Includes c10d.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/backends/gloo.h"
#include "comm/backends/run_store.h"
#include "comm/backends/watch_tree.h"
#include "comm/sockets.h"

namespace metroplex::comm {

// The rendezvous store, and the meeting of ranks in it: each says that it has started, or why it cannot.

struct RunStore {
  std::unique_ptr<StoreServer> server;  // none if another process serves the store
  c10::intrusive_ptr<c10d::Store> store;
};
// Served by rank 0, or by the launcher's agent. Throws base::Error("comm") if the port cannot be opened, or is not
// reachable within the timeout. A call to the store fails after kSilence without an answer.
RunStore open_store(const GlooOptions& options);
// The secret of the run: the launcher's; without one, a random one, which every client of the store can read.
std::string agree_on_secret(c10d::Store& store, const GlooOptions& options);
// Returns on rank 0 when all ranks have come here, on the others at once. `check` may throw.
void wait_for_all(c10d::Store& store, const GlooOptions& options, const std::function<void()>& check);

std::optional<std::string> look_up(c10d::Store& store, const std::string& key);

// Returns when all ranks have come here with the same backend and world size, each under a rank of its own. Throws
// PeerFailure with the cause when one refused, and base::Error("comm") that names the missing ranks at the timeout.
// `address` is this machine's, for messages.
void meet(c10d::Store& store, const GlooOptions& options, const std::string& address);
// Throws the current exception, of a call to the store, as PeerFailure.
[[noreturn]] void throw_store_failure(const GlooOptions& options);
// Instead of meet(): all others throw there. Rank 0, whose store it is, returns when they have heard of it, or after
// 20 s.
void refuse(c10d::Store& store, const GlooOptions& options, const std::string& cause);

using GlooMesh = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

// Collective over the `size` members of the mesh that `key` names: each pair proves the run's secret to each other,
// because gloo takes any program that connects in time for a member. Throws base::Error("comm").
void check_members(const GlooMesh& mesh, const std::string& secret, const std::string& key, int index, int size);

// Numbers that tell groups apart whose messages share connections. The groups of one name and purpose have at most
// one rank in common, so these have a number, not a group: a world has about twenty, whatever its size.
class GroupNumbers {
 public:
  static constexpr int kMost = 1024;  // bits of a tag, see Mesh::tag
  explicit GroupNumbers(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  // The same on all ranks that ask. Throws base::Error("comm") beyond kMost names.
  int of(const GroupSpec& spec) const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

class GlooState {
 public:
  explicit GlooState(GlooOptions options);
  ~GlooState();

  const GlooOptions& options() const { return options_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  // Over all ranks; only with GlooOptions::full_mesh.
  const GlooMesh& world_mesh() const { return world_mesh_; }
  // Collective over the `size` members of the group that `key` names.
  GlooMesh connect(const std::string& key, int index, int size);
  int number_of_group(const GroupSpec& spec);
  // Blocks; throws PeerFailure when the world was aborted meanwhile, or when the peer is lost.
  void wait(const c10::intrusive_ptr<c10d::Work>& work, int peer, const std::string& what);
  void throw_if_aborted();
  void fail(const std::exception_ptr& exception);

  // A transfer with global rank `peer` broke: throws with the cause, which may be a third rank.
  [[noreturn]] void lost(int peer, const std::string& what, const std::string& error);

 private:
  void choose_addresses();
  void join_watch();
  void connect_all();
  void close();
  void end_monitor();
  void monitor();
  void wait_for_hearsay();
  void abort_here(const std::string& cause);

  const GlooOptions options_;
  std::vector<std::string> addresses_;  // of this machine, one an interface
  std::string secret_;
  std::unique_ptr<StoreServer> server_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<WatchTree> watch_;
  GlooMesh world_mesh_;
  std::vector<GroupSpec> numbered_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> all_joined_{false};  // this rank is in the tree, where late ranks receive a cause too
  std::mutex devices_mutex_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::exception_ptr own_failure_;
  std::string cause_;
  std::multiset<c10d::Work*> blocked_;
  std::thread monitor_;
};

}  // namespace metroplex::comm

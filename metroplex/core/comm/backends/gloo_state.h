// Internals of the gloo backend: store, failure detection and meshes. Includes c10d headers.
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

struct RunStore {
  std::unique_ptr<StoreServer> server;     // null if another process serves the store
  c10::intrusive_ptr<StoreClient> client;  // null if the launcher's agent serves the store
  c10::intrusive_ptr<c10d::Store> store;
};
// Opens the store, served by rank 0 or by the launcher's agent. Throws base::Error("comm") if the port cannot be
// opened or reached within the timeout. A store call without an answer fails after kSilence.
RunStore open_store(const GlooOptions& options);
// Returns the secret of the run. Without one from the launcher it is random, and every client of the store can read
// it.
std::string agree_on_secret(c10d::Store& store, const GlooOptions& options);
// Rank 0 returns when all ranks have called this; other ranks return at once. `check` may throw.
void wait_for_all(c10d::Store& store, const GlooOptions& options, const std::function<void()>& check);

std::optional<std::string> look_up(c10d::Store& store, const std::string& key);

// Waits until every rank has called this with the same backend and world size and a distinct rank. Throws PeerFailure
// with the cause if a rank refused. Throws base::Error("comm") with the missing ranks at the timeout. `address` of
// this machine is used in messages.
void meet(const RunStore& run, const GlooOptions& options, const std::string& address);
// Rethrows the current exception of a store call as PeerFailure.
[[noreturn]] void throw_store_failure(const GlooOptions& options);
// Replaces meet() on a rank that cannot start: meet() throws on all other ranks. Rank 0, which serves the store,
// returns when they have read the cause, or after 20 s.
void refuse(c10d::Store& store, const GlooOptions& options, const std::string& cause);

using GlooMesh = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

// Collective over the `size` members of the mesh `key`. The members of each pair prove to each other that they
// hold the run's secret, because gloo accepts any program that connects in time. Throws base::Error("comm").
void check_members(const GlooMesh& mesh, const std::string& secret, const std::string& key, int index, int size);

// Numbers that separate the messages of groups on shared connections. Groups with equal name and purpose have at
// most one rank in common, so they can share a number. A world of any size uses about twenty numbers.
class GroupNumbers {
 public:
  static constexpr int kMaxNumbers = 1024;  // limited by the bits of a tag, see Mesh::tag
  explicit GroupNumbers(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  // Returns the same number on all ranks. Throws base::Error("comm") beyond kMaxNumbers names.
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
  // Connects all ranks; only with GlooOptions::full_mesh.
  const GlooMesh& world_mesh() const { return world_mesh_; }
  // Collective over the `size` members of group `key`.
  GlooMesh connect(const std::string& key, int index, int size);
  int group_number(const GroupSpec& spec);
  // Blocks. Throws PeerFailure if the run is aborted or the peer is lost during the wait.
  void wait(const c10::intrusive_ptr<c10d::Work>& work, int peer, const std::string& what);
  void throw_if_aborted();
  void fail(const std::exception_ptr& exception);

  // Handles a broken transfer with global rank `peer`: throws with the cause, which may be a third rank.
  [[noreturn]] void throw_transfer_error(int peer, const std::string& what, const std::string& error);

 private:
  void choose_addresses();
  void join_watch();
  void connect_all();
  void close();
  void end_monitor();
  void monitor();
  void wait_for_cause();
  void abort_local(const std::string& cause);
  std::string list_unconnected(const std::string& key, int size);

  const GlooOptions options_;
  std::vector<std::string> addresses_;  // of this machine, one per interface
  std::string secret_;
  RunStore run_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<WatchTree> watch_;
  GlooMesh world_mesh_;
  std::vector<GroupSpec> numbered_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> all_joined_{false};  // this rank is in the tree, which also delivers causes to late ranks
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

// Inside of the gloo backend: the mesh, the store, and the monitor thread. Includes c10d.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "comm/backends/gloo.h"

namespace metroplex::comm {

class GlooState {
 public:
  explicit GlooState(GlooOptions options);
  ~GlooState();

  const GlooOptions& options() const { return options_; }
  c10d::ProcessGroupGloo& mesh() { return *mesh_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  // A number that all members of (name, ranks) agree on.
  int number_of_group(const std::string& key);
  // Blocks; throws PeerFailure when the world was aborted meanwhile, or when the peer is lost.
  void wait(const c10::intrusive_ptr<c10d::Work>& work, int peer, const std::string& what);
  void throw_if_aborted();
  void fail(const std::exception_ptr& exception);

  // A transfer with global rank `peer` broke: throws with the cause, which may be a third rank.
  [[noreturn]] void lost(int peer, const std::string& what, const std::string& error);

 private:
  void connect_store();
  void connect_mesh();
  void close();
  void monitor();
  bool read_cause();
  void let_others_read(int num_readers);
  void abort_here(const std::string& cause);

  const GlooOptions options_;
  c10::intrusive_ptr<c10d::Store> store_, watch_;  // watch_: a connection of its own, never blocked by a wait
  c10::intrusive_ptr<c10d::ProcessGroupGloo> mesh_;
  std::atomic<bool> aborted_{false};
  std::mutex watch_mutex_;  // of watch_
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::exception_ptr own_failure_;
  std::string cause_;
  std::multiset<c10d::Work*> blocked_;
  std::thread monitor_;
};

}  // namespace metroplex::comm

// Failure detection between processes. Every rank has one connection to its parent in the rank tree and one to
// each child, and a thread that serves them. A process that dies closes its connections. The thread sends a
// heartbeat every WatchOptions::beat. A neighbor that sends none for WatchOptions::silence is stopped or
// unreachable. Its neighbors send the cause through the tree, and so does a rank that fails by itself. The ranks
// also use the tree to leave together.
//
// The port of a rank is open until its children have connected. Both ends prove that they hold the run's secret
// without sending it. Unproven connections are closed; their number, message size and duration are limited.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/failure.h"
#include "comm/backends/watch_link.h"

namespace metroplex::comm {

struct WatchOptions {
  int rank = 0;
  int world_size = 1;
  std::string address;  // of this process, numeric, reachable by its children
  std::string secret;   // equal on all ranks
  std::string host;     // name of this machine, for messages
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  std::chrono::milliseconds beat{2000}, silence{15000};
  // Time limit for neighbors to connect if all ranks have started. Unset: `timeout`, for the parent only.
  std::optional<std::chrono::milliseconds> connect_limit;
  // The rendezvous, where a parent publishes its address. look_up returns nothing until the key exists.
  std::function<void(const std::string& key, const std::string& value)> publish;
  std::function<std::optional<std::string>(const std::string& key)> look_up;
  RankFormatter rank_name = format_rank;
  // The watching thread calls it when another rank fails, at most once, and not after `send_cause()`.
  std::function<void(const std::string& cause)> on_failure;
};

class WatchTree {
 public:
  // Joins the parent; children join later. Throws PeerFailure if the parent is unreachable or a rank has already
  // failed (look_up(kCauseKey)), and base::Error("comm") at the timeout.
  explicit WatchTree(WatchOptions options);
  // Closes the connections. Neighbors treat a rank that has not called leave() as dead.
  ~WatchTree();
  WatchTree(const WatchTree&) = delete;
  WatchTree& operator=(const WatchTree&) = delete;

  // Sends `cause` to all ranks. Returns when the neighbors have it or a time limit has passed.
  void send_cause(const std::string& cause);
  // Returns when all ranks are leaving, when one has failed, or at the timeout.
  void leave();

  static constexpr const char* kCauseKey = "cause";

 private:
  using Clock = std::chrono::steady_clock;

  void listen();
  void join_parent();
  void stop();
  // These run on the watching thread, under the lock.
  void work();
  void close_unproven();
  void beat(Clock::time_point now);
  void check_silence(Clock::time_point now);
  void check_children(Clock::time_point now);
  std::chrono::milliseconds parent_limit() const;
  std::string format_unconnected(int rank) const;
  void read_from(int fd);
  bool handle(int fd, WatchLink& link, const WatchMessage& message);
  bool admit_child(WatchLink& link, const WatchMessage& message);
  bool admit_parent(WatchLink& link, const WatchMessage& message);
  void wait_until_proven(int fd, int parent);
  std::string format_peer(const WatchLink& link) const;
  void report_lost_peer(const std::string& cause);
  void drop(int fd);
  void forward_cause(const std::string& cause, int except_fd);
  void update_leaving();
  void wake();
  bool flushed() const;

  const WatchOptions options_;
  const std::vector<int> children_;
  LinkPort port_;
  int wake_fd_ = -1;
  std::mutex mutex_;
  std::condition_variable changed_;
  WatchLinks links_;
  bool closing_ = false, leaving_ = false, reported_done_ = false,
       all_leaving_ = false;  // all_leaving_: all ranks are leaving
  std::optional<std::string> cause_;
  std::optional<std::string> pending_cause_;  // owned by the watching thread: to be passed to on_failure
  std::set<int> joined_;
  Clock::time_point last_beat_ = Clock::now(), last_round_ = Clock::now();
  Clock::time_point started_ = Clock::now();  // moved forward by each pause of this process
  std::thread thread_;
};

}  // namespace metroplex::comm

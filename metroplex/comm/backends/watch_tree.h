// Failure detection between processes. Every rank has one connection to its parent in the rank tree and one to each
// child, and a thread that serves them. A process that dies closes its connections. The thread sends a beat every
// WatchOptions::beat; a neighbor without one for WatchOptions::silence is stopped or unreachable. The neighbors pass
// the cause through the tree, as does a rank that fails by itself. The ranks also leave together through the tree.
//
// The port of a rank is open until its children have connected. Both ends prove that they hold the run's secret
// without sending it. Unproven connections are closed; their number, length and time are limited.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/failure.h"

namespace metroplex::comm {

// One connection of the watch. A message is a letter, the length in four bytes, and the text. An unproven end may
// send kLongestHello bytes per message.
struct WatchMessage {
  char kind = 0;
  std::string text;
};

struct WatchLink {
  static constexpr size_t kHead = 5, kLongest = 1 << 16, kLongestHello = 320;

  int rank = -1;                    // -1: unproven, accepted on the port
  bool proven = false;              // the other end holds the secret
  std::string nonce, parent_nonce;  // of this end; of a parent's end
  std::string host, address;        // of the other end
  std::string in, out;
  bool done = false;  // a child whose whole subtree is leaving
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();  // last bytes received

  void put(char kind, const std::string& text);
  // How much more may be read before a message has to be taken.
  size_t room() const;
  // The next whole message; sets `refused` where its head announces more than may come.
  std::optional<WatchMessage> take(bool& refused);
};

// 32 random hexadecimal digits from the kernel.
std::string random_secret();
// The proof that its maker holds `secret`, for `text` with a nonce of the verifier.
std::string prove(const std::string& secret, const std::string& text);
// In constant time.
bool equal_secrets(const std::string& one, const std::string& other);

struct WatchOptions {
  int rank = 0;
  int world_size = 1;
  std::string address;  // of this process, numeric, as its children reach it
  std::string secret;   // equal on all ranks
  std::string host;     // name of this machine, for messages
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  std::chrono::milliseconds beat{2000}, silence{15000};
  // How long a neighbor may take to connect, where all ranks have started; none: `timeout`, and only for the parent.
  std::optional<std::chrono::milliseconds> connect_limit;
  // The rendezvous: where a parent listens. look_up gives nothing until the key is there.
  std::function<void(const std::string& key, const std::string& value)> publish;
  std::function<std::optional<std::string>(const std::string& key)> look_up;
  DescribeRank describe = describe_plainly;
  // Another rank failed. From the watching thread, at most once, and not after tell().
  std::function<void(const std::string& cause)> on_failure;
};

class WatchTree {
 public:
  // Joins the parent; children join later. Throws PeerFailure when the parent is gone or somebody has failed already
  // (look_up(kCauseKey)), base::Error("comm") at the timeout.
  explicit WatchTree(WatchOptions options);
  // Cuts the connections: who has not left is taken for dead by its neighbours.
  ~WatchTree();
  WatchTree(const WatchTree&) = delete;
  WatchTree& operator=(const WatchTree&) = delete;

  // Hands `cause` on to all ranks; returns when the neighbours have it or have had time to.
  void tell(const std::string& cause);
  // Returns when all ranks are leaving, when one has failed, or at the timeout.
  void leave();

  static constexpr const char* kCauseKey = "cause";
  static constexpr std::chrono::seconds kSilence{20};

 private:
  using Clock = std::chrono::steady_clock;

  void listen();
  void join_parent();
  void stop();
  // Of the watching thread, under the lock.
  void work();
  std::ptrdiff_t num_strangers() const;
  bool accepting() const;
  void turn_strangers_away();
  void beat(Clock::time_point now);
  void check_silence(Clock::time_point now);
  void check_children(Clock::time_point now);
  std::chrono::milliseconds limit_of_parent() const;
  std::string not_connected(int rank) const;
  void accept_child();
  void read_from(int fd);
  bool handle(int fd, WatchLink& link, const WatchMessage& message);
  bool admit_child(WatchLink& link, const WatchMessage& message);
  bool admit_parent(WatchLink& link, const WatchMessage& message);
  void wait_until_proven(int fd, int parent);
  std::string name_of(const WatchLink& link) const;
  void report_lost(const std::string& cause);
  void drop(int fd);
  void spread(const std::string& cause, int except_fd);
  void settle();
  void flush(int fd, WatchLink& link);
  void wake();
  bool flushed() const;

  const WatchOptions options_;
  const std::vector<int> children_;
  int listen_fd_ = -1, wake_fd_ = -1;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, WatchLink> links_;                                             // by socket
  bool closing_ = false, leaving_ = false, said_done_ = false, over_ = false;  // over: all are leaving
  std::optional<std::string> cause_;
  std::optional<std::string> heard_;               // the watching thread's own: to be given to on_failure
  std::set<int> joined_;                           // children that came
  std::optional<Clock::time_point> out_of_files_;  // until then no connection is accepted
  Clock::time_point last_beat_ = Clock::now(), last_round_ = Clock::now();
  Clock::time_point started_ = Clock::now();  // later by each pause of this process
  std::thread thread_;
};

}  // namespace metroplex::comm

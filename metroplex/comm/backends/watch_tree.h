// How processes notice each other's end. Every rank holds one connection to its parent in the rank tree and one to
// each child; a thread watches them. A process that dies closes its connections, whatever its ranks are blocked in,
// and a machine that falls silent is given up by the kernel after kSilence: the neighbours name it and pass it on,
// and so does a rank that fails by itself with its cause. The ranks also leave together through the tree.
//
// The port of a rank is open until its children are there. A connection without the secret, which the store
// hands out, is closed; neither what it sends nor how many come is kept. Without a failure the connections then carry
// one message when the run begins and two when it ends.
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

// One connection of the watch: messages of a letter, the length in four bytes, and the text, as they come and go.
// What is not yet known to be one of our ranks may say a hello and no more.
struct WatchMessage {
  char kind = 0;
  std::string text;
};

struct WatchLink {
  static constexpr size_t kHead = 5, kLongest = 1 << 16, kLongestHello = 96;

  int rank = -1;  // -1: a stranger, who has not said who it is
  std::string in, out;
  bool done = false;  // a child whose whole subtree is leaving
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();

  void put(char kind, const std::string& text);
  // How much more may be read before a message has to be taken.
  size_t room() const;
  // The next whole message; sets `refused` where its head announces more than may come.
  std::optional<WatchMessage> take(bool& refused);
};

// 32 hexadecimal digits that nobody guesses.
std::string random_secret();
// Takes as long wherever the two differ.
bool equal_secrets(const std::string& one, const std::string& other);

struct WatchOptions {
  int rank = 0;
  int world_size = 1;
  std::string address;  // of this process, numeric, as its children reach it
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
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
  void accept_child();
  void read_from(int fd);
  bool handle(int fd, WatchLink& link, const WatchMessage& message);
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
  std::string secret_;                             // of the hellos; published beside the port
  std::set<int> joined_;                           // children that came
  std::optional<Clock::time_point> out_of_files_;  // until then nobody is accepted
  std::thread thread_;
};

}  // namespace metroplex::comm

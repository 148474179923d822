// The watch over the other ranks: its trees in one process, with a map as store.
#include "comm/backends/watch_tree.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "comm/network.h"
#include "support/error_of.h"

namespace metroplex::comm {
namespace {

using namespace std::chrono_literals;

constexpr const char* kSecret = "of this test";

class WatchWorld {
 public:
  explicit WatchWorld(int size, std::chrono::milliseconds silence = 15s,
                      std::optional<std::chrono::milliseconds> connect_limit = {})
      : size_(size), silence_(silence), connect_limit_(connect_limit), causes_(static_cast<size_t>(size)) {}
  std::unique_ptr<WatchTree> join(int rank) {
    WatchOptions options;
    options.rank = rank;
    options.world_size = size_;
    options.address = "127.0.0.1";
    options.secret = kSecret;
    options.host = "here";
    options.timeout = 20s;
    options.silence = silence_;
    options.beat = silence_ / 10;
    options.connect_limit = connect_limit_;
    options.publish = [this](const std::string& key, const std::string& value) { set(key, value); };
    options.look_up = [this](const std::string& key) -> std::optional<std::string> {
      const std::lock_guard lock(mutex_);
      const auto found = store_.find(key);
      return found == store_.end() ? std::nullopt : std::optional(found->second);
    };
    options.on_failure = [this, rank](const std::string& cause) {
      const std::lock_guard lock(mutex_);
      causes_[static_cast<size_t>(rank)].push_back(cause);
    };
    return std::make_unique<WatchTree>(std::move(options));
  }
  // Waits up to ten seconds for a failure to reach `rank` and returns the received causes.
  std::vector<std::string> received_causes(int rank) {
    for (int i = 0; i < 1000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (!causes_[static_cast<size_t>(rank)].empty()) return causes_[static_cast<size_t>(rank)];
      }
      std::this_thread::sleep_for(10ms);
    }
    return {};
  }
  std::vector<std::string> causes_so_far(int rank) {
    const std::lock_guard lock(mutex_);
    return causes_[static_cast<size_t>(rank)];
  }
  uint16_t published_port(int rank) {
    const std::lock_guard lock(mutex_);
    std::istringstream words(store_.at("watch/" + std::to_string(rank)));
    std::string address;
    uint16_t port = 0;
    words >> address >> port;
    return port;
  }
  void set(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    store_[key] = value;
  }

 private:
  const int size_;
  const std::chrono::milliseconds silence_;
  const std::optional<std::chrono::milliseconds> connect_limit_;
  std::mutex mutex_;
  std::map<std::string, std::string> store_;
  std::vector<std::vector<std::string>> causes_;
};

using Causes = std::vector<std::string>;

int connect_raw(uint16_t port) {
  std::string error;
  return connect_to("127.0.0.1", port, 2s, error);
}

void send_bytes(int fd, const std::string& bytes) {
  [[maybe_unused]] const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// True if the other side closes within a second.
bool is_closed_by_peer(int fd) {
  for (int i = 0; i < 100; ++i) {
    char byte = 0;
    const ssize_t size = ::recv(fd, &byte, 1, MSG_DONTWAIT);
    if (size == 0 || (size < 0 && errno != EAGAIN)) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

std::string message(char kind, const std::string& text) {
  WatchLink link;
  link.put(kind, text);
  return link.out;
}

// The next message of the other end; none if it closes the connection or sends nothing for five seconds.
std::optional<WatchMessage> receive(int fd) {
  WatchLink link;
  bool refused = false;
  for (int i = 0; i < 500; ++i) {
    char byte = 0;
    ssize_t size = 0;
    while ((size = ::recv(fd, &byte, 1, MSG_DONTWAIT)) == 1) {
      link.in += byte;
      if (const auto whole = link.take(refused)) return whole;
    }
    if (size == 0) return std::nullopt;
    std::this_thread::sleep_for(10ms);
  }
  return std::nullopt;
}

// The hello of a child, for the parent's nonce.
std::string hello(const std::string& secret, const std::string& parent_nonce, const std::string& place) {
  const std::string claimed = place + " there " + std::string(32, 'a');
  return message('h', claimed + " " + prove(secret, "child " + parent_nonce + " " + claimed));
}

// A manual connection of rank `rank` of three to rank 0, as a process of the run makes it.
int join_by_hand(WatchWorld& world, int rank) {
  const int fd = connect_raw(world.published_port(0));
  const auto nonce = receive(fd);
  EXPECT_TRUE(nonce && nonce->kind == 'n');
  if (nonce) send_bytes(fd, hello(kSecret, nonce->text, base::concat(rank, "/3")));
  const auto welcome = receive(fd);
  EXPECT_TRUE(welcome && welcome->kind == 'w');
  return fd;
}

// Two ranks join the first, all leave, and none fails.
void expect_clean_run(WatchWorld& world, WatchTree& first) {
  const auto one = world.join(1), two = world.join(2);
  std::thread a([&] { one->leave(); }), b([&] { two->leave(); });
  first.leave();
  a.join();
  b.join();
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(world.causes_so_far(rank), Causes{}) << rank;
}

TEST(WatchPort, WhoDoesNotKnowTheSecretIsTurnedAwayAndTheRunGoesOn) {
  WatchWorld world(3);
  const auto first = world.join(0);
  const uint16_t port = world.published_port(0);
  const std::string guess = hello(kSecret, std::string(32, '0'), "1/3");
  for (const std::string& bytes :
       {guess, message('h', "1/3"), message('w', prove(kSecret, "")), message('c', "rank 1 failed"),
        std::string("h\xff\xff\xff\x7f"), std::string("h\x41\x01\0\0", 5), std::string("GET / HTTP/1.1\r\n\r\n")}) {
    const int fd = connect_raw(port);
    ASSERT_GE(fd, 0);
    send_bytes(fd, bytes);
    receive(fd);  // the nonce
    EXPECT_TRUE(is_closed_by_peer(fd)) << testing::PrintToString(bytes);
    ::close(fd);
  }
  for (const auto& [secret, place] :
       {std::pair("another", "1/3"), std::pair(kSecret, "1/4"), std::pair(kSecret, "0/3")}) {
    const int fd = connect_raw(port);
    const auto nonce = receive(fd);
    ASSERT_TRUE(nonce);
    send_bytes(fd, hello(secret, nonce->text, place));
    EXPECT_TRUE(is_closed_by_peer(fd)) << secret << " " << place;
    ::close(fd);
  }
  const int half = connect_raw(port);
  send_bytes(half, guess.substr(0, 7));
  receive(half);
  const int gone = connect_raw(port);
  send_bytes(gone, guess.substr(0, 7));
  ::close(gone);
  expect_clean_run(world, *first);
  EXPECT_TRUE(is_closed_by_peer(half));
  ::close(half);
}

TEST(WatchPort, IsClosedOnceTheChildrenAreThere) {
  WatchWorld world(3);
  const auto first = world.join(0);
  const uint16_t port = world.published_port(0);
  const auto one = world.join(1), two = world.join(2);
  int fd = 0;
  for (int i = 0; i < 200 && fd >= 0; ++i) {
    fd = connect_raw(port);
    if (fd >= 0) ::close(fd);
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_LT(fd, 0);
  std::thread a([&] { one->leave(); }), b([&] { two->leave(); });
  first->leave();
  a.join();
  b.join();
}

struct FileLimit {
  rlimit before{};
  FileLimit() { ::getrlimit(RLIMIT_NOFILE, &before); }
  ~FileLimit() { set(before.rlim_cur); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;
  void set(rlim_t soft) const {
    const rlimit limit{soft, before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
};

size_t resident_kib() {
  FILE* const file = std::fopen("/proc/self/statm", "r");
  long all = 0, resident = 0;
  const int read = std::fscanf(file, "%ld %ld", &all, &resident);
  std::fclose(file);
  return read == 2 ? static_cast<size_t>(resident) * 4 : 0;
}

TEST(WatchPort, TwoThousandConnectionsAndAFloodAreBorne) {
  const FileLimit limit;
  limit.set(std::min<rlim_t>(limit.before.rlim_max, 8192));
  WatchWorld world(3);
  const auto first = world.join(0);
  const uint16_t port = world.published_port(0);
  const size_t before = resident_kib();
  std::vector<int> connections;
  for (int i = 0; i < 2000; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    ASSERT_GE(fd, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
    send_bytes(fd, std::string(60000, 'x'));
    connections.push_back(fd);
  }
  std::this_thread::sleep_for(200ms);
  EXPECT_LT(resident_kib(), before + 32 * 1024);
  for (const int fd : connections) ::close(fd);
  expect_clean_run(world, *first);
}

double processor_seconds() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

TEST(WatchPort, WithoutFilesLeftItWaitsInsteadOfSpinning) {
  WatchWorld world(3);
  const auto first = world.join(0);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(world.published_port(0));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  {
    const FileLimit limit;
    limit.set(3);
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const double before = processor_seconds();
    std::this_thread::sleep_for(600ms);
    EXPECT_LT(processor_seconds() - before, 0.2);
  }
  ::close(fd);
  expect_clean_run(world, *first);
}

TEST(WatchTree, OfTwoFailuresEveryRankHearsTheFirstOnce) {
  WatchWorld world(10);
  std::vector<std::unique_ptr<WatchTree>> trees;
  for (int rank = 0; rank < 10; ++rank) trees.push_back(world.join(rank));
  trees[9]->send_cause("rank 9 failed");
  for (int rank = 0; rank < 9; ++rank) EXPECT_EQ(world.received_causes(rank), Causes{"rank 9 failed"}) << rank;
  trees[3]->send_cause("rank 3 failed too");
  trees[9].reset();
  trees[1].reset();  // the process dies
  std::this_thread::sleep_for(200ms);
  for (int rank = 0; rank < 9; ++rank) EXPECT_EQ(world.causes_so_far(rank), Causes{"rank 9 failed"}) << rank;
  EXPECT_EQ(world.causes_so_far(9), Causes{});
  trees[0]->leave();  // waits for no rank
}

TEST(WatchTree, ASecondCauseFromBelowGoesNoFurther) {
  WatchWorld world(3);
  const auto first = world.join(0), one = world.join(1);
  const int two = join_by_hand(world, 2);
  send_bytes(two, message('c', "the first") + message('c', "the second"));
  EXPECT_EQ(world.received_causes(1), Causes{"the first"});
  std::this_thread::sleep_for(100ms);  // time for the second one to arrive
  EXPECT_EQ(world.causes_so_far(0), Causes{"the first"});
  EXPECT_EQ(world.causes_so_far(1), Causes{"the first"});
  ::close(two);
}

TEST(WatchTree, ProofsAreHmacSha1) {  // RFC 2202, cases 2 and 6
  EXPECT_EQ(prove("Jefe",
                  "what do ya "
                  "want "
                  "for nothing?"),
            "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
  EXPECT_EQ(prove(std::string(80, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "aa4ae5e15272d00e95705637ce8a3b55ed402112");
}

TEST(WatchTree, AParentWithoutTheSecretIsRefused) {
  WatchWorld world(3);
  const auto [port_fd, port] = listen_at("127.0.0.1");
  world.set("watch/0", base::concat("127.0.0.1 ", port, " here"));
  std::thread fake([&world, port_fd = port_fd] {
    int fd = -1;
    for (int i = 0; i < 500 && fd < 0; ++i, std::this_thread::sleep_for(10ms))
      fd = ::accept(port_fd, nullptr, nullptr);
    send_bytes(fd, message('n', std::string(32, '0')));
    receive(fd);
    send_bytes(fd, message('w', prove("another", "")) + message('c', "rank 0 failed"));
    EXPECT_TRUE(is_closed_by_peer(fd));
    ::close(fd);
  });
  EXPECT_THROW(world.join(1), PeerFailure);
  fake.join();
  ::close(port_fd);
  EXPECT_EQ(world.causes_so_far(1), Causes{});
}

TEST(WatchTree, ASilentNeighborIsReportedAsStopped) {
  WatchWorld world(3, 1s);
  const auto first = world.join(0), one = world.join(1);
  const int two = join_by_hand(world, 2);
  const std::string cause =
      "rank 2 has not answered for 1 s: its machine answers, but its process is not running (stopped by a signal or "
      "a "
      "debugger, or without memory or processor time)";
  EXPECT_EQ(world.received_causes(0), Causes{cause});
  EXPECT_EQ(world.received_causes(1), Causes{cause});
  ::close(two);
}

TEST(WatchTree, AChildThatDoesNotConnectIsReported) {
  WatchWorld world(3, 15s, 1s);
  const auto first = world.join(0), one = world.join(1);
  const std::string cause =
      "rank 2 has not connected for 1 s: its process is not running (not started, or stopped by a signal or a "
      "debugger), "
      "or the network to it is down";
  EXPECT_EQ(world.received_causes(0), Causes{cause});
  EXPECT_EQ(world.received_causes(1), Causes{cause});
}

TEST(WatchTree, AParentThatDoesNotAnswerIsReported) {
  WatchWorld world(3, 15s, 1s);
  const auto [fd, port] = listen_at("127.0.0.1");
  for (const bool listens : {false, true}) {
    if (listens) world.set("watch/0", base::concat("127.0.0.1 ", port, " here"));
    const auto began = std::chrono::steady_clock::now();
    const std::string error = test::catch_error([&] { world.join(1); });
    EXPECT_NE(error.find("rank 0 has not connected for 1 s"), std::string::npos) << error;
    EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
  }
  ::close(fd);
}

TEST(WatchTree, NeighborsWithBeatsAreNotReported) {
  WatchWorld world(3, 1500ms, 1500ms);
  const auto first = world.join(0), one = world.join(1), two = world.join(2);
  std::this_thread::sleep_for(4s);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(world.causes_so_far(rank), Causes{}) << rank;
}

TEST(WatchTree, WhoJoinsLateHearsOfAFailureBeforeIt) {
  WatchWorld world(10);
  std::vector<std::unique_ptr<WatchTree>> trees;
  for (int rank = 0; rank < 9; ++rank) trees.push_back(world.join(rank));
  trees[2]->send_cause("rank 2 failed");
  EXPECT_EQ(world.received_causes(8), Causes{"rank 2 failed"});
  const auto late = world.join(9);
  EXPECT_EQ(world.received_causes(9), Causes{"rank 2 failed"});
}

TEST(WatchTree, AFailureBelowARankThatHasNotJoinedYetGoesUpWhenItJoins) {
  WatchWorld world(10);
  std::unique_ptr<WatchTree> eight;
  std::thread joining([&] { eight = world.join(8); });  // waits for rank 0
  {
    const auto nine = world.join(9);
    nine->send_cause("rank 9 failed");
  }
  EXPECT_EQ(world.received_causes(8), Causes{"rank 9 failed"});
  const auto zero = world.join(0);
  joining.join();
  EXPECT_EQ(world.received_causes(0), Causes{"rank 9 failed"});
}

}  // namespace
}  // namespace metroplex::comm

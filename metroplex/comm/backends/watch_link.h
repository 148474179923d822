// Authenticated connections between the processes of a run: framing, the proof of the run's secret, and ports that
// limit unproven connections. A message is a letter, the length in four bytes, and the text.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/sockets.h"

namespace metroplex::comm {

struct WatchMessage {
  char kind = 0;
  std::string text;
};

// One end of a connection. An unproven end may send kLongestHello bytes per message.
struct WatchLink {
  static constexpr size_t kHead = 5, kLongest = 1 << 16, kLongestHello = 320;

  size_t longest = kLongest;        // bytes of a message of a proven end
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
  // Sends what the socket accepts without blocking.
  void flush(int fd);
};

using WatchLinks = std::map<int, WatchLink>;  // by socket

// A listening port whose clients have to prove the secret. The number, the time and the messages of unproven
// connections are limited.
class LinkPort {
 public:
  LinkPort() = default;
  explicit LinkPort(OwnedFd fd);

  void close();
  // The descriptor to poll; -1 while no connection may be accepted.
  int pollable(const WatchLinks& links) const;
  // Accepts one connection and sends it a nonce.
  void accept(WatchLinks& links);
  // Unproven connections to be dropped: those whose time is over, or all.
  std::vector<int> expired(const WatchLinks& links, bool all);
  // Whether the owner has to come back within kPause, without an event.
  bool has_limits(const WatchLinks& links) const;

  static constexpr std::chrono::milliseconds kPause{100};  // of accepting, when the process has no more files

 private:
  OwnedFd fd_;
  std::optional<std::chrono::steady_clock::time_point> out_of_files_;  // until then no connection is accepted
};

// The handshake: the accepting end sends a nonce, the other end a hello with its own nonce and proof, which the
// accepting end answers with its proof.
inline constexpr char kNonce = 'n', kHello = 'h', kWelcome = 'w';
inline constexpr std::chrono::seconds kSilence{20};  // after which the kernel gives up a silent connection

// 32 random hexadecimal digits from the kernel.
std::string random_secret();
// The proof that its maker holds `secret`, for `text` with a nonce of the verifier.
std::string prove(const std::string& secret, const std::string& text);
// In constant time.
bool equal_secrets(const std::string& one, const std::string& other);

}  // namespace metroplex::comm

// Authenticated connections between the processes of a run: framing, proof of the run's secret, and ports that limit
// unproven connections. A message is one letter, a four-byte length and the text.
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

// One end of a connection. An unproven end may send kMaxHello bytes per message.
struct WatchLink {
  static constexpr size_t kHead = 5, kMaxMessage = 1 << 16, kMaxHello = 320;

  size_t max_message = kMaxMessage;  // maximum message size of a proven end, in bytes
  int rank = -1;                     // -1: unproven, accepted on the port
  bool proven = false;               // the other end holds the secret
  std::string nonce, parent_nonce;   // of this end; of the parent
  std::string host, address;         // of the other end
  std::string in, out;
  bool done = false;   // a child whose whole subtree is leaving
  bool stays = false;  // a client of the store that remains after the start
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();  // last bytes received

  void put(char kind, const std::string& text);
  // Returns how many bytes may be read before take() must be called.
  size_t free_bytes() const;
  // Returns the next complete message. Sets `refused` if its header announces more than the limit.
  std::optional<WatchMessage> take(bool& refused);
  // Sends what the socket accepts without blocking.
  void flush(int fd);
};

using WatchLinks = std::map<int, WatchLink>;  // by socket

// A listening port whose clients must prove the secret. Number, duration and message size of unproven connections are
// limited.
class LinkPort {
 public:
  LinkPort() = default;
  explicit LinkPort(OwnedFd fd);

  void close();
  // The descriptor to poll; -1 while no connection may be accepted.
  int pollable(const WatchLinks& links) const;
  // Accepts one connection and sends it a nonce.
  void accept(WatchLinks& links);
  // Returns the unproven connections to close: expired ones, or all.
  std::vector<int> expired(const WatchLinks& links, bool all);
  // True if the process had no free file descriptor for the last connection.
  bool lacks_files() const { return out_of_files_.has_value(); }
  // True if the owner must call expired() within kPause, even without an event.
  bool has_limits(const WatchLinks& links) const;

  // Delay before accepting again after the process ran out of file descriptors.
  static constexpr std::chrono::milliseconds kPause{100};

 private:
  OwnedFd fd_;
  std::optional<std::chrono::steady_clock::time_point> out_of_files_;  // no connection is accepted before this time
};

// Handshake: the accepting end sends a nonce. The other end answers with a hello that contains its own nonce and
// proof. The accepting end answers with its proof.
inline constexpr char kNonce = 'n', kHello = 'h', kWelcome = 'w';
inline constexpr std::chrono::seconds kSilence{20};  // timeout after which the kernel closes a silent connection

// Returns 32 random hexadecimal digits from the kernel.
std::string random_secret();
// Returns a proof that its sender holds `secret`. `text` contains a nonce of the verifier.
std::string prove(const std::string& secret, const std::string& text);
// Runs in constant time.
bool equal_secrets(const std::string& one, const std::string& other);

}  // namespace metroplex::comm

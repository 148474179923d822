// One connection of the watch: messages of a letter, the length in four bytes, and the text, as they come and go.
// What is not yet known to be one of our ranks may say a hello and no more.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

namespace metroplex::comm {

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

}  // namespace metroplex::comm

// Error handling. User, file and network errors throw base::Error through MPX_CHECK, with the module, both values and
// a suggested fix:
//   MPX_CHECK(world % n == 0, "topology", world, " ranks are not a multiple of tp*cp*pp = ", n, "; choose ...");
// Internal errors use MPX_ASSERT. Only apps/ converts an Error to an exit code (by its module).
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace metroplex::base {

class Error : public std::runtime_error {
 public:
  // what() is "[module] message".
  Error(std::string room, const std::string& message);
  const std::string& room() const { return room_; }

 private:
  std::string room_;
};

// Returns what(); for an Error, without the module prefix.
std::string message_of(const std::exception& error);

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

[[noreturn]] void throw_error(const char* room, const std::string& message);
[[noreturn]] void throw_assert(const char* file, int line, const char* condition, const std::string& message);

// Returns the candidate nearest to `word` by edit distance, or "" if none is near enough for a typo.
template <class Range>
std::string nearest_name(const std::string& word, const Range& candidates);
int edit_distance(const std::string& a, const std::string& b);

template <class Range>
std::string nearest_name(const std::string& word, const Range& candidates) {
  int best = static_cast<int>(word.size()) / 3 + 2;
  std::string name;
  for (const auto& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (distance < best) {
      best = distance;
      name = candidate;
    }
  }
  return name;
}

}  // namespace metroplex::base

#define MPX_CHECK(condition, room, ...)                                                                              \
  do {                                                                                                               \
    if (!(condition)) [[unlikely]] { ::metroplex::base::throw_error(room, ::metroplex::base::concat(__VA_ARGS__)); } \
  } while (false)

#define MPX_ASSERT(condition, ...)                                                                             \
  do {                                                                                                         \
    if (!(condition)) [[unlikely]] {                                                                           \
      ::metroplex::base::throw_assert(__FILE__, __LINE__, #condition, ::metroplex::base::concat(__VA_ARGS__)); \
    }                                                                                                          \
  } while (false)

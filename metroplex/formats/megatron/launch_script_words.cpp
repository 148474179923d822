// Serialization of launch scripts for the processes of the run.
#include "megatron/launch_script.h"

#include <charconv>

#include "base/error.h"

namespace metroplex::megatron {
namespace {

constexpr size_t kFixedWords = 7;

int64_t parse_number(const std::string& word) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  MPX_CHECK(error == std::errc() && end == word.data() + word.size() && number >= 0, "config", "'", word,
            "' is not a number in the record of a launch script");
  return number;
}

}  // namespace

std::vector<std::string> to_words(const LaunchScript& script) {
  std::vector<std::string> words{script.program,
                                 std::to_string(script.ranks),
                                 script.folder,
                                 script.unknown_ranks,
                                 script.note,
                                 std::to_string(script.arguments_named),
                                 std::to_string(script.flags.size())};
  words.insert(words.end(), script.flags.begin(), script.flags.end());
  return words;
}

LaunchScript from_words(const std::vector<std::string>& words, size_t& at) {
  MPX_CHECK(at <= words.size() && words.size() - at >= kFixedWords, "config",
            "the record of a launch script is truncated");
  LaunchScript script;
  script.program = words[at];
  script.ranks = parse_number(words[at + 1]);
  script.folder = words[at + 2];
  script.unknown_ranks = words[at + 3];
  script.note = words[at + 4];
  script.arguments_named = parse_number(words[at + 5]);
  const auto count = static_cast<size_t>(parse_number(words[at + 6]));
  at += kFixedWords;
  MPX_CHECK(count <= words.size() - at, "config", "the record of a launch script is truncated");
  script.flags.assign(words.begin() + static_cast<std::ptrdiff_t>(at),
                      words.begin() + static_cast<std::ptrdiff_t>(at + count));
  at += count;
  return script;
}

}  // namespace metroplex::megatron

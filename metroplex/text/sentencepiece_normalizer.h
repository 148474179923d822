// What a sentencepiece model does to a text before cutting it: characters become others (NFKC and such, as a table in
// the file), spaces become U+2581, one more is put in front, extra ones go. Symbols that the user has defined are
// left as they are. As the package's release 0.2.3 does it.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_trie.h"
#include "text/sentencepiece_file.h"

namespace metroplex::text {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

class SentencePieceNormalizer {
 public:
  // `verbatim` need not outlive the call, but `spec` points into the file, which is copied.
  SentencePieceNormalizer(const NormalizerSpec& spec, bool space_as_suffix,
                          const std::vector<std::string_view>& verbatim);

  // Any bytes; the result is valid UTF-8. One U+FFFD stands for every byte that is not part of valid UTF-8.
  std::string apply(std::string_view text) const;

 private:
  struct Prefix {
    std::string_view text;  // what it becomes
    size_t bytes = 0;
  };
  Prefix normalize_prefix(std::string_view text) const;
  Prefix longest_rule(std::string_view text) const;
  size_t append_plain(std::string_view text, size_t at, bool& after_space, std::string& out) const;
  void find_plain_bytes();

  std::vector<uint32_t> units_;
  std::string replacements_;
  ByteTrie verbatim_;
  std::string_view space_;
  bool dummy_prefix_, dummy_suffix_, remove_extra_spaces_;
  // Characters of ASCII that no rule and no symbol of the user's begins with, whatever of ASCII stands behind them.
  std::array<bool, 128> plain_{};
};

}  // namespace metroplex::text

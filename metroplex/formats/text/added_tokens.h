// Finds added tokens in a text before pre-tokenization; each becomes one id. Added tokens are the special tokens and
// the entries that a tokenizer.json adds to its model's vocabulary. The leftmost match wins; at one position the
// longest.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <cstdint>

namespace metroplex::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only between characters that are not \w
  bool lstrip = false;       // also consumes the white space before it
  bool rstrip = false;       // also consumes the white space after it
  bool normalized = false;   // matched in the normalized text
  bool special = false;      // skipped by decode_skip_special
};

struct AddedSplit {
  std::string_view text;
  int32_t id = -1;  // -1 for plain text
};

class AddedTokenFinder {
 public:
  // Matches `token` where the text has the spelling `content`. An empty spelling never matches.
  void add(const AddedToken& token, const std::string& content);
  bool empty() const { return tokens_.empty(); }

  // Covers `text` from left to right, without empty ranges.
  void split(std::string_view text, std::vector<AddedSplit>& out) const;

 private:
  struct Match {
    size_t begin, end;
    int token;
  };
  bool find(std::string_view text, size_t from, Match& match) const;

  std::vector<AddedToken> tokens_;
  bool begins_[256] = {};
  std::vector<int> token_at_{-1};               // trie: the token that ends at each node
  std::unordered_map<uint64_t, int> child_of_;  // (node << 8 | byte) -> node
};

}  // namespace metroplex::text

// Tokens that are found in the text before anything else looks at it, and become one id each: special tokens, and
// whatever a tokenizer.json adds to its model's vocabulary. Leftmost match first, the longest there.
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
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in the normalized text
  bool special = false;      // left out by decode_skip_special
};

// A stretch of text, or a token found there.
struct AddedSplit {
  std::string_view text;
  int32_t id = -1;  // of the token; -1 for text
};

class AddedTokenFinder {
 public:
  // Adds a token to look for under the spelling `content`. An empty spelling is never found.
  void add(const AddedToken& token, const std::string& content);
  bool empty() const { return tokens_.empty(); }

  // Covers `text` from left to right, without empty stretches.
  void split(std::string_view text, std::vector<AddedSplit>& out) const;

 private:
  struct Match {
    size_t begin, end;
    int token;
  };
  bool find(std::string_view text, size_t from, Match& match) const;

  std::vector<AddedToken> tokens_;
  bool begins_[256] = {};
  std::vector<int> token_at_{-1};               // trie: per node the token that ends there
  std::unordered_map<uint64_t, int> child_of_;  // (node << 8 | byte) -> node
};

}  // namespace metroplex::text

// Splits a text into words, which the model encodes one at a time. A PreTokenizer is a list of steps; each splits
// every word of the previous step.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_part.h"
#include "text/regex.h"
#include "text/text_range.h"

namespace metroplex::text {

// A word that a step has rewritten, for example with a leading space.
struct RewrittenWord {
  std::string text;
  std::string_view original;  // in the text or in an earlier rewritten word
  Sources sources;            // positions in `original`; empty unless Words::has_sources
};

// Buffers for one text. The words point into the text or into `rewritten`.
struct Words {
  std::vector<std::string_view> words, next;
  std::vector<TextRange> matches;
  std::deque<RewrittenWord> rewritten;
  RegexScratch regex;
  bool at_start = false;     // the text is at the start of the whole input
  bool has_sources = false;  // steps fill RewrittenWord::sources

  void start(std::string_view text, bool text_at_start);
  // Returns the byte of the text from which the byte `at` of a word originates. Fast for words in ascending order.
  const char* source(const char* at);

 private:
  size_t last_rewritten_ = 0;  // cache of source(): the last word's index
};

class PreTokenizer {
 public:
  class Step {
   public:
    virtual ~Step() = default;
    // Appends the parts of `word` to out.next; empty parts are allowed.
    virtual void split_word(std::string_view word, Words& out) const = 0;
  };

  // For null, the whole text is one word. Throws base::Error for an unknown type.
  explicit PreTokenizer(const JsonPart& part);

  // GPT-2's regular expression, then the byte alphabet.
  static PreTokenizer gpt2(bool add_prefix_space);

  // Whether words are bytes: vocabulary and merges are spelled in GPT-2's alphabet of 256 characters.
  bool byte_level() const { return byte_level_; }

  // Stores the words, none empty, in out.words. Requires a preceding out.start.
  void split_word(Words& out) const;

 private:
  PreTokenizer() = default;
  void add(const JsonPart& part, int depth);
  void add_byte_level(bool add_prefix_space, bool use_regex);

  std::vector<std::unique_ptr<Step>> steps_;
  bool byte_level_ = false;
};

}  // namespace metroplex::text

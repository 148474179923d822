// Cuts a text into the words that the model works on one at a time: no merge crosses a cut. A PreTokenizer is a list
// of steps; each cuts every word of the step before.
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

// A word that a step wrote anew, such as one with a space in front.
struct RewrittenWord {
  std::string text;
  std::string_view original;  // in the text or in an earlier rewritten word
  Sources sources;            // positions in `original`; empty unless Words::has_sources
};

// What cutting one text writes to; the words point into the text or into `rewritten`.
struct Words {
  std::vector<std::string_view> words, next;
  std::vector<TextRange> matches;
  std::deque<RewrittenWord> rewritten;
  RegexScratch regex;
  bool at_start = false;     // the text begins where the whole input begins
  bool has_sources = false;  // steps fill RewrittenWord::sources

  void start(std::string_view text, bool text_at_start);
  // The byte of the text that the byte at `at` of a word comes from. Fast if called for one word after another.
  const char* source(const char* at);

 private:
  size_t last_rewritten_ = 0;  // where source() found the last word
};

class PreTokenizer {
 public:
  class Step {
   public:
    virtual ~Step() = default;
    // Appends the parts of `word` to out.next (empty ones may be among them).
    virtual void cut(std::string_view word, Words& out) const = 0;
  };

  // One word a text for null. Throws base::Error for a type it does not know.
  explicit PreTokenizer(const JsonPart& part);

  // GPT-2's: its regular expression, then bytes.
  static PreTokenizer gpt2(bool add_prefix_space);

  // Words are to be read as bytes: vocabulary and merges are written in GPT-2's alphabet of 256 characters.
  bool byte_level() const { return byte_level_; }

  // Leaves the words, none empty, in out.words; out.start must have been called.
  void cut(Words& out) const;

 private:
  PreTokenizer() = default;
  void add(const JsonPart& part, int depth);
  void add_byte_level(bool add_prefix_space, bool use_regex);

  std::vector<std::unique_ptr<Step>> steps_;
  bool byte_level_ = false;
};

}  // namespace metroplex::text

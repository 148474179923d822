#include "text/pretokenizer.h"

#include <algorithm>
#include <array>
#include <functional>

#include "text/regex.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The treatment of a pattern's matches.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct Part {
  size_t begin, end;
  bool match;
};

void emit(std::string_view word, const std::vector<Part>& parts, Behavior behavior, Words& out) {
  const auto push = [&](size_t begin, size_t end) {
    if (begin < end) out.next.push_back(word.substr(begin, end - begin));
  };
  if (behavior == Behavior::removed || behavior == Behavior::isolated) {
    for (const Part& part : parts) {
      if (!part.match || behavior == Behavior::isolated) push(part.begin, part.end);
    }
    return;
  }
  // A part extends the previous one or starts a new word.
  size_t begin = 0, end = 0;
  bool last_match = false, first = true;
  for (const Part& part : parts) {
    bool join = false;
    if (behavior == Behavior::contiguous) join = part.match == last_match;
    if (behavior == Behavior::merged_with_previous) join = part.match && !last_match;
    if (behavior == Behavior::merged_with_next) join = !part.match && last_match;
    if (first || !join) {
      if (!first) push(begin, end);
      begin = part.begin;
    }
    end = part.end;
    last_match = part.match;
    first = false;
  }
  if (!first) push(begin, end);
}

class SplitStep final : public PreTokenizer::Step {
 public:
  SplitStep(std::string_view pattern, Behavior behavior, bool invert)
      : regex_(pattern), behavior_(behavior), invert_(invert) {}

  void split_word(std::string_view word, Words& out) const override {
    regex_.find_all(word, out.regex, out.matches);
    if (behavior_ == Behavior::isolated) {
      size_t done = 0;
      for (const TextRange& match : out.matches) {
        if (done < match.begin) out.next.push_back(word.substr(done, match.begin - done));
        out.next.push_back(word.substr(match.begin, match.end - match.begin));
        done = match.end;
      }
      if (done < word.size()) out.next.push_back(word.substr(done));
      return;
    }
    std::vector<Part> parts;
    size_t done = 0;
    for (const TextRange& match : out.matches) {
      if (done < match.begin) parts.push_back({done, match.begin, invert_});
      parts.push_back({match.begin, match.end, !invert_});
      done = match.end;
    }
    if (done < word.size()) parts.push_back({done, word.size(), invert_});
    emit(word, parts, behavior_, out);
  }

 private:
  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

class CharacterStep final : public PreTokenizer::Step {
 public:
  using Predicate = bool (*)(char32_t);
  CharacterStep(Predicate predicate, Behavior behavior) : predicate_(predicate), behavior_(behavior) {}

  void split_word(std::string_view word, Words& out) const override {
    std::vector<Part> parts;
    size_t done = 0;
    for (size_t position = 0; position < word.size();) {
      const size_t begin = position;
      if (!predicate_(next_code_point(word, position))) continue;
      if (done < begin) parts.push_back({done, begin, false});
      parts.push_back({begin, position, true});
      done = position;
    }
    if (done < word.size()) parts.push_back({done, word.size(), false});
    emit(word, parts, behavior_, out);
  }

 private:
  Predicate predicate_;
  Behavior behavior_;
};

class PrefixSpaceStep final : public PreTokenizer::Step {
 public:
  void split_word(std::string_view word, Words& out) const override {
    if (word.empty() || word[0] == ' ') {
      out.next.push_back(word);
    } else {
      RewrittenWord& spaced = out.rewritten.emplace_back();
      spaced.original = word;
      Sources* sources = out.has_sources ? &spaced.sources : nullptr;
      append_from(spaced.text, sources, " ", 0);
      append_unchanged(spaced.text, sources, word, {0, word.size()});
      out.next.push_back(spaced.text);
    }
  }
};

class MetaspaceStep final : public PreTokenizer::Step {
 public:
  enum class Prepend { always, first, never };
  MetaspaceStep(std::string mark, Prepend prepend, bool split)
      : mark_(std::move(mark)), prepend_(prepend), split_(split) {}

  void split_word(std::string_view word, Words& out) const override {
    RewrittenWord& marked = out.rewritten.emplace_back();
    marked.original = word;
    Sources* sources = out.has_sources ? &marked.sources : nullptr;
    const bool starts_with_mark = word.substr(0, 1) == " " || word.substr(0, mark_.size()) == mark_;
    const bool at_start = out.at_start && out.next.empty();
    if (!starts_with_mark && (prepend_ == Prepend::always || (prepend_ == Prepend::first && at_start)))
      append_from(marked.text, sources, mark_, 0);
    for (size_t i = 0; i < word.size(); ++i)
      append_from(marked.text, sources, word[i] == ' ' ? std::string_view(mark_) : word.substr(i, 1), i);
    const std::string_view all = marked.text;
    if (!split_) {
      out.next.push_back(all);
      return;
    }
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = std::min(all.find(mark_, begin + 1), all.size());
      out.next.push_back(all.substr(begin, end - begin));
      begin = end;
    }
  }

 private:
  std::string mark_;
  Prepend prepend_;
  bool split_;
};

// Wraps a step after ByteLevel. The step sees each byte of a word as its character in GPT-2's alphabet.
class AlphabetStep final : public PreTokenizer::Step {
 public:
  explicit AlphabetStep(std::unique_ptr<PreTokenizer::Step> step) : step_(std::move(step)) {}

  void split_word(std::string_view word, Words& out) const override {
    std::string mapped;
    std::vector<size_t> byte_at;  // by position in `mapped`
    for (size_t i = 0; i < word.size(); ++i) {
      mapped += alphabet_.spelling(static_cast<unsigned char>(word[i]));
      byte_at.resize(mapped.size(), i);
    }
    byte_at.push_back(word.size());
    std::vector<std::string_view> before;
    before.swap(out.next);
    step_->split_word(mapped, out);
    before.swap(out.next);
    for (const std::string_view part : before) {
      if (part.empty()) continue;
      const auto begin = static_cast<size_t>(part.data() - mapped.data());
      out.next.push_back(word.substr(byte_at[begin], byte_at[begin + part.size()] - byte_at[begin]));
    }
  }

 private:
  ByteAlphabet alphabet_;
  std::unique_ptr<PreTokenizer::Step> step_;
};

Behavior parse_behavior(const JsonPart& part, const char* key, const char* fallback) {
  static constexpr std::array<std::pair<const char*, Behavior>, 5> kNames{
      {{"Removed", Behavior::removed},
       {"Isolated", Behavior::isolated},
       {"MergedWithPrevious", Behavior::merged_with_previous},
       {"MergedWithNext", Behavior::merged_with_next},
       {"Contiguous", Behavior::contiguous}}};
  const std::string name = part.string(key, fallback);
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  part.check(false, "behavior '", name, "' is not supported");
  return Behavior::isolated;
}

std::unique_ptr<PreTokenizer::Step> make_split(const JsonPart& part) {
  const JsonPart pattern = part.member("pattern");
  const std::string expression =
      pattern.has("String") ? quote_regex(pattern.string("String")) : pattern.string("Regex");
  const Behavior behavior = parse_behavior(part, "behavior", "Isolated");
  try {
    return std::make_unique<SplitStep>(expression, behavior, part.flag("invert", false));
  } catch (const base::Error& error) {
    pattern.check(false, error.what());
    throw;
  }
}

std::unique_ptr<PreTokenizer::Step> make_metaspace(const JsonPart& part) {
  using Prepend = MetaspaceStep::Prepend;
  const std::string mark = part.string("replacement", "\xE2\x96\x81");
  part.check(!mark.empty() && mark.size() == code_point_size(static_cast<unsigned char>(mark[0])),
             "replacement must be one character");
  // Older files have add_prefix_space instead of prepend_scheme.
  const std::string scheme = part.string("prepend_scheme", part.flag("add_prefix_space", true) ? "always" : "never");
  part.check(scheme == "always" || scheme == "first" || scheme == "never", "prepend_scheme is '", scheme,
             "', not always, first or never");
  const Prepend prepend = scheme == "always" ? Prepend::always : scheme == "first" ? Prepend::first : Prepend::never;
  return std::make_unique<MetaspaceStep>(mark, prepend, part.flag("split", true));
}

}  // namespace

void Words::start(std::string_view text, bool text_at_start) {
  words.assign(1, text);
  rewritten.clear();
  at_start = text_at_start;
  last_rewritten_ = 0;
}

const char* Words::source(const char* at) {
  const auto holds = [&](const RewrittenWord& word) {
    const char* begin = word.text.data();
    return !std::less<>()(at, begin) && std::less<>()(at, begin + word.text.size());
  };
  for (size_t tried = 0; tried < rewritten.size();) {
    const RewrittenWord& word = rewritten[last_rewritten_ % rewritten.size()];
    if (!holds(word)) {
      ++last_rewritten_;
      ++tried;
      continue;
    }
    at = word.original.data() + word.sources[static_cast<size_t>(at - word.text.data())];
    tried = 0;
  }
  return at;
}

PreTokenizer::PreTokenizer(const JsonPart& part) { add(part, 0); }

PreTokenizer PreTokenizer::gpt2(bool add_prefix_space) {
  PreTokenizer result;
  result.add_byte_level(add_prefix_space, true);
  return result;
}

void PreTokenizer::add_byte_level(bool add_prefix_space, bool use_regex) {
  if (add_prefix_space) steps_.push_back(std::make_unique<PrefixSpaceStep>());
  if (use_regex) steps_.push_back(std::make_unique<SplitStep>(kGpt2Pattern, Behavior::isolated, false));
  byte_level_ = true;
}

void PreTokenizer::add(const JsonPart& part, int depth) {
  if (part.is_null()) return;
  part.check(depth <= kMaxSequenceDepth, "Sequence is nested more than ", kMaxSequenceDepth, " levels deep");
  const std::string type = part.type();
  if (type == "Sequence") {
    for (const JsonPart& item : part.member("pretokenizers").items()) add(item, depth + 1);
    return;
  }
  const size_t num_steps = steps_.size();
  const bool after_byte_level = byte_level_;
  part.check(!byte_level_ || (type != "ByteLevel" && type != "Metaspace"), "'", type,
             "' after ByteLevel is not supported");
  if (type == "ByteLevel") {
    add_byte_level(part.flag("add_prefix_space", true), part.flag("use_regex", true));
  } else if (type == "Split") {
    steps_.push_back(make_split(part));
  } else if (type == "Metaspace") {
    steps_.push_back(make_metaspace(part));
  } else if (type == "Digits") {
    const Behavior behavior = part.flag("individual_digits", false) ? Behavior::isolated : Behavior::contiguous;
    steps_.push_back(std::make_unique<CharacterStep>(is_numeric, behavior));
  } else if (type == "Punctuation") {
    steps_.push_back(std::make_unique<CharacterStep>(is_punctuation, parse_behavior(part, "behavior", "Isolated")));
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(std::make_unique<CharacterStep>(is_white_space, Behavior::removed));
  } else if (type == "Whitespace") {
    steps_.push_back(std::make_unique<SplitStep>(R"(\w+|[^\w\s]+)", Behavior::removed, true));
  } else {
    part.check(
        false, "pre-tokenizer '", type,
        "' is not supported; use ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit "
        "or Sequence");
  }
  if (after_byte_level && steps_.size() > num_steps)
    steps_.back() = std::make_unique<AlphabetStep>(std::move(steps_.back()));
}

void PreTokenizer::split_word(Words& out) const {
  for (const auto& step : steps_) {
    out.next.clear();
    for (const std::string_view word : out.words) step->split_word(word, out);
    std::erase_if(out.next, [](std::string_view word) { return word.empty(); });
    out.words.swap(out.next);
  }
}

}  // namespace metroplex::text

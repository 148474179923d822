#include "text/json_tokenizer.h"

#include <algorithm>
#include <span>

#include "base/error.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

// Candidates for the end token among the special added tokens, in this order, if no file names one.
constexpr const char* kUsualEndTokens[] = {"<|endoftext|>",
                                           "</s>",
                                           "<|end_of_text|>",
                                           ("<\xEF\xBD\x9C"  // a hex escape would swallow the e
                                            "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"),
                                           "<|im_end|>",
                                           "<eos>"};

}  // namespace

struct JsonTokenizer::Scratch {
  BpeScratch bpe;
  Words words;
  std::vector<AddedSplit> splits, normalized_splits;
  std::string normalized;
  Sources sources;                 // of `normalized`
  std::vector<TextRange> in_word;  // of the tokens of one word
};

JsonTokenizer::~JsonTokenizer() = default;

JsonTokenizer::JsonTokenizer(JsonTokenizerParts parts, SpecialNames names, InvalidUtf8 invalid_utf8)
    : parts_(std::move(parts)), invalid_utf8_(invalid_utf8), pool_(std::make_unique<ScratchPool<Scratch>>()) {
  RegexScratch regex;
  std::unordered_set<std::string> special;
  for (const AddedToken& token : parts_.added) {
    if (token.special) special.insert(token.content);
  }
  vocab_size_ = parts_.model.num_ids();
  for (size_t i = 0; i < parts_.added.size(); ++i) {
    const AddedToken& token = parts_.added[i];
    vocab_size_ = std::max<int64_t>(vocab_size_, int64_t{token.id} + 1);
    added_ids_.emplace(token.content, token.id);
    const std::string stored = token.normalized ? parts_.normalizer.apply(token.content, regex) : token.content;
    if (!token.special || !names.splits_special) (token.normalized ? normalized_ : plain_).add(token, stored);
    added_by_id_.emplace(token.id, Stored{i, stored, special.contains(stored)});
  }
  const auto text = std::find(parts_.around.begin(), parts_.around.end(), JsonTokenizerParts::kText);
  special_ = {{parts_.around.begin(), text}, {text + 1, parts_.around.end()}};
  find_special_ids(names, special);
}

void JsonTokenizer::find_special_ids(const SpecialNames& names, const std::unordered_set<std::string>& special) {
  const auto id_of = [&](const std::optional<std::string>& name, std::optional<int32_t> id) {
    const auto named = name ? token_to_id(*name) : std::nullopt;
    return named || !id || !spelling(*id) ? named : id;
  };
  bos_ = id_of(names.bos, names.bos_id);
  eos_ = id_of(names.eos, names.eos_id);
  pad_ = id_of(names.pad, names.pad_id);
  for (const char* usual : kUsualEndTokens) {
    if (!eos_ && special.contains(usual)) eos_ = token_to_id(usual);
  }
  if (!bos_ && !special_.before.empty()) bos_ = special_.before.front();
}

std::vector<int32_t> JsonTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 8);
  ScratchPool<Scratch>::Lease scratch(*pool_, text.size());
  const size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) {
    encode_valid(text, *scratch, out, nullptr);
    return out;
  }
  MPX_CHECK(invalid_utf8_ == InvalidUtf8::replace, "text", "the text is not UTF-8 at byte ", valid, " of ",
            text.size(), "; convert it, or replace invalid UTF-8 with U+FFFD");
  encode_valid(replace_invalid_utf8(text), *scratch, out, nullptr);
  return out;
}

void JsonTokenizer::encode_valid(std::string_view text, Scratch& scratch, std::vector<int32_t>& out,
                                 std::vector<TextRange>* ranges) const {
  scratch.splits.clear();
  scratch.words.has_sources = ranges != nullptr;
  plain_.split(text, scratch.splits);
  for (const AddedSplit& split : scratch.splits) {
    const size_t num_before = ranges ? ranges->size() : 0;
    const auto begin = static_cast<size_t>(split.text.data() - text.data());
    if (split.id >= 0) {
      out.push_back(split.id);
      if (ranges) ranges->push_back({0, split.text.size()});
    } else {
      encode_split(split.text, begin == 0, scratch, out, ranges);
    }
    for (size_t i = num_before; ranges && i < ranges->size(); ++i) {
      (*ranges)[i].begin += begin;
      (*ranges)[i].end += begin;
    }
  }
}

// `first`: the split is at the start of the text. Ranges are relative to the split.
void JsonTokenizer::encode_split(std::string_view split, bool first, Scratch& scratch, std::vector<int32_t>& out,
                                 std::vector<TextRange>* ranges) const {
  std::string_view normalized = split;
  if (ranges || !parts_.normalizer.empty()) {
    scratch.normalized = parts_.normalizer.apply(split, scratch.words.regex, ranges ? &scratch.sources : nullptr);
    normalized = scratch.normalized;
  }
  const auto add_range = [&](const char* first_byte, const char* last_byte) {
    const auto begin = static_cast<size_t>(first_byte - normalized.data());
    const auto last = static_cast<size_t>(last_byte - normalized.data());
    ranges->push_back(original_range(split, scratch.sources, {begin, last + 1}));
  };
  scratch.normalized_splits.clear();
  normalized_.split(normalized, scratch.normalized_splits);
  for (const AddedSplit& part : scratch.normalized_splits) {
    if (part.id >= 0) {
      out.push_back(part.id);
      if (ranges) add_range(part.text.data(), part.text.data() + part.text.size() - 1);
      continue;
    }
    scratch.words.start(part.text, first && part.text.data() == normalized.data());
    parts_.pretokenizer.split_word(scratch.words);
    for (const std::string_view word : scratch.words.words) {
      const size_t num_before = out.size();
      parts_.model.encode(word, scratch.bpe, out);
      if (!ranges) continue;
      scratch.in_word.clear();
      parts_.model.append_ranges(word, std::span(out).subspan(num_before), scratch.in_word);
      for (const TextRange& range : scratch.in_word)
        add_range(scratch.words.source(word.data() + range.begin), scratch.words.source(word.data() + range.end - 1));
    }
  }
}

LocatedIds JsonTokenizer::encode_with_ranges(std::string_view text) const {
  LocatedIds located;
  MPX_CHECK(valid_utf8_prefix(text) == text.size(), "text", "the text is not UTF-8 at byte ", valid_utf8_prefix(text),
            " of ", text.size(), "; convert it");
  ScratchPool<Scratch>::Lease scratch(*pool_, text.size());
  encode_valid(text, *scratch, located.ids, &located.ranges);
  if (parts_.trims_ranges) trim_ranges(located);
  return located;
}

// Follows process_offsets of the `tokenizers` package.
void JsonTokenizer::trim_ranges(LocatedIds& located) const {
  constexpr char32_t kSpaceByte = 0x120;  // a space in GPT-2's alphabet
  for (size_t i = 0; i < located.ids.size(); ++i) {
    const std::string token = id_to_token(located.ids[i]);
    size_t leading = 0, trailing = 0;
    bool only_space = true;
    for (size_t position = 0; position < token.size();) {
      const char32_t c = next_code_point(token, position);
      const bool space = c == kSpaceByte || is_white_space(c);
      only_space = only_space && space;
      leading += only_space;
      trailing = space ? trailing + 1 : 0;
    }
    auto& [begin, end] = located.ranges[i];
    // The pre-tokenizer may have added a single leading space.
    if (leading == 1 && parts_.keeps_first_space && (i == 0 || begin == 0)) leading = 0;
    begin = std::min(begin + leading, end);
    if (end >= trailing) end = std::max(end - trailing, begin);
  }
}

const std::string* JsonTokenizer::spelling(int32_t id) const {
  const auto it = added_by_id_.find(id);
  return it != added_by_id_.end() ? &parts_.added[it->second.added].content : parts_.model.token(id);
}

std::string JsonTokenizer::decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    if (skip_special && is_special(id)) continue;
    const auto it = added_by_id_.find(id);
    const std::string* token = it != added_by_id_.end() ? &it->second.text : parts_.model.token(id);
    if (token) tokens.push_back(*token);
  }
  ScratchPool<Scratch>::Lease scratch(*pool_, 0);
  return parts_.decoder.decode(std::move(tokens), scratch->words.regex);
}

bool JsonTokenizer::is_special(int32_t id) const {
  const auto it = added_by_id_.find(id);
  return it != added_by_id_.end() && it->second.skipped;
}

std::string JsonTokenizer::id_to_token(int32_t id) const {
  const std::string* token = spelling(id);
  return token ? *token : "";
}

std::optional<int32_t> JsonTokenizer::token_to_id(std::string_view token) const {
  const auto it = added_ids_.find(std::string(token));
  if (it != added_ids_.end()) return it->second;
  return parts_.model.id(token);
}

}  // namespace metroplex::text

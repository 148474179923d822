#include "text/json_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

// Where no file says which token ends a text.
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
};

JsonTokenizer::~JsonTokenizer() = default;

JsonTokenizer::JsonTokenizer(JsonTokenizerParts parts, SpecialNames names, InvalidUtf8 invalid_utf8)
    : parts_(std::move(parts)), invalid_utf8_(invalid_utf8), pool_(std::make_unique<ScratchPool<Scratch>>()) {
  RegexScratch regex;
  vocab_size_ = parts_.model.num_ids();
  for (size_t i = 0; i < parts_.added.size(); ++i) {
    const AddedToken& token = parts_.added[i];
    vocab_size_ = std::max<int64_t>(vocab_size_, int64_t{token.id} + 1);
    added_by_id_.emplace(token.id, i);
    added_ids_.emplace(token.content, token.id);
    if (token.normalized) {
      normalized_.add(token, parts_.normalizer.apply(token.content, regex));
    } else {
      plain_.add(token, token.content);
    }
  }
  find_special_ids(names);
}

void JsonTokenizer::find_special_ids(const SpecialNames& names) {
  const auto id_of = [&](const std::optional<std::string>& name) { return name ? token_to_id(*name) : std::nullopt; };
  bos_ = id_of(names.bos);
  eos_ = id_of(names.eos);
  pad_ = id_of(names.pad);
  for (const char* usual : kUsualEndTokens) {
    if (!eos_) eos_ = token_to_id(usual);
  }
  const auto text = std::find(parts_.around.begin(), parts_.around.end(), JsonTokenizerParts::kText);
  if (!bos_ && text != parts_.around.end() && text != parts_.around.begin()) bos_ = parts_.around.front();
}

std::vector<int32_t> JsonTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 8);
  ScratchPool<Scratch>::Lease scratch(*pool_, text.size());
  const size_t valid = valid_utf8_prefix(text);
  if (valid == text.size()) {
    encode_valid(text, *scratch, out);
    return out;
  }
  MPX_CHECK(invalid_utf8_ == InvalidUtf8::replace, "text", "the text is not UTF-8 at byte ", valid, " of ",
            text.size(), "; convert it, or ask for invalid UTF-8 to be replaced by U+FFFD");
  encode_valid(replace_invalid_utf8(text), *scratch, out);
  return out;
}

void JsonTokenizer::encode_valid(std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const {
  scratch.splits.clear();
  plain_.split(text, scratch.splits);
  for (const AddedSplit& split : scratch.splits) {
    if (split.id >= 0) {
      out.push_back(split.id);
      continue;
    }
    std::string_view normalized = split.text;
    if (!parts_.normalizer.empty()) {
      scratch.normalized = parts_.normalizer.apply(split.text, scratch.words.regex);
      normalized = scratch.normalized;
    }
    scratch.normalized_splits.clear();
    normalized_.split(normalized, scratch.normalized_splits);
    const bool first = split.text.data() == text.data();
    for (const AddedSplit& part : scratch.normalized_splits) {
      if (part.id >= 0) {
        out.push_back(part.id);
        continue;
      }
      scratch.words.start(part.text, first && part.text.data() == normalized.data());
      parts_.pretokenizer.cut(scratch.words);
      for (const std::string_view word : scratch.words.words) parts_.model.encode(word, scratch.bpe, out);
    }
  }
}

std::vector<int32_t> JsonTokenizer::encode_with_special(std::string_view text) const {
  const std::vector<int32_t> ids = encode(text);
  std::vector<int32_t> out;
  out.reserve(ids.size() + parts_.around.size());
  for (const int32_t piece : parts_.around) {
    if (piece == JsonTokenizerParts::kText) {
      out.insert(out.end(), ids.begin(), ids.end());
    } else {
      out.push_back(piece);
    }
  }
  return out;
}

const std::string* JsonTokenizer::spelling(int32_t id) const {
  const auto it = added_by_id_.find(id);
  return it != added_by_id_.end() ? &parts_.added[it->second].content : parts_.model.token(id);
}

std::string JsonTokenizer::decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const auto it = added_by_id_.find(id);
    if (skip_special && it != added_by_id_.end() && parts_.added[it->second].special) continue;
    if (const std::string* token = spelling(id)) tokens.push_back(*token);
  }
  ScratchPool<Scratch>::Lease scratch(*pool_, 0);
  return parts_.decoder.decode(std::move(tokens), scratch->words.regex);
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

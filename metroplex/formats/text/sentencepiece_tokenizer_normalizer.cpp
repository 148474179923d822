#include "text/sentencepiece_tokenizer.h"

#include <algorithm>

#include "text/utf8.h"

namespace metroplex::text {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

ByteTrie make_trie(const std::vector<std::string_view>& texts) {
  ByteTrie::Entries entries;
  for (const std::string_view text : texts) entries.emplace_back(text, 0);
  return ByteTrie(std::move(entries));
}

}  // namespace

SentencePieceNormalizer::SentencePieceNormalizer(const NormalizerSpec& spec, bool space_as_suffix,
                                                 const std::vector<std::string_view>& verbatim)
    : units_(spec.character_map.units),
      replacements_(spec.character_map.replacements),
      verbatim_(make_trie(verbatim)),
      space_(spec.escape_spaces ? kSpaceMark : std::string_view(" ")),
      dummy_prefix_(spec.dummy_prefix && !space_as_suffix),
      dummy_suffix_(spec.dummy_prefix && space_as_suffix),
      remove_extra_spaces_(spec.remove_extra_spaces) {
  find_plain_bytes();
}

void SentencePieceNormalizer::find_plain_bytes() {
  for (unsigned c = 0; c < plain_.size(); ++c) {
    plain_[c] = !verbatim_.begins_with(static_cast<unsigned char>(c));
    if (units_.empty() || !plain_[c]) continue;
    const uint64_t place = CharacterMap::offset(units_[0]) ^ c;
    if (!CharacterMap::has_label(units_[place], static_cast<unsigned char>(c))) continue;
    plain_[c] = !CharacterMap::has_value(units_[place]);
    const uint64_t below = place ^ CharacterMap::offset(units_[place]);
    for (unsigned next = 0; next < plain_.size(); ++next) {
      plain_[c] = plain_[c] && !CharacterMap::has_label(units_[below ^ next], static_cast<unsigned char>(next));
    }
  }
}

// Returns the longest rule of the character map that is a prefix of the text; bytes = 0 if none is.
SentencePieceNormalizer::Prefix SentencePieceNormalizer::longest_rule(std::string_view text) const {
  Prefix longest;
  if (units_.empty()) return longest;
  uint64_t place = CharacterMap::offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    place ^= byte;
    const uint32_t unit = units_[place];
    if (!CharacterMap::has_label(unit, byte)) break;
    place ^= CharacterMap::offset(unit);
    if (CharacterMap::has_value(unit)) {
      longest = {std::string_view(replacements_.c_str() + (units_[place] & ~(1u << 31))), i + 1};
    }
  }
  return longest;
}

SentencePieceNormalizer::Prefix SentencePieceNormalizer::normalize_prefix(std::string_view text) const {
  if (const auto match = verbatim_.longest_prefix(text); match.size > 0)
    return {text.substr(0, match.size), match.size};
  if (const Prefix rule = longest_rule(text); rule.bytes > 0) return rule;
  const size_t size = std::min(text.size(), code_point_size(static_cast<unsigned char>(text[0])));
  if (valid_utf8_prefix(text.substr(0, size)) == size) return {text.substr(0, size), size};
  return {kReplacementCharacter, 1};
}

// Appends characters without rules and returns the end of them. An ASCII character before a non-ASCII one may begin a
// rule (e and an accent).
size_t SentencePieceNormalizer::append_plain(std::string_view text, size_t at, bool& after_space,
                                             std::string& out) const {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  for (;;) {
    const size_t begin = at;
    while (at < text.size() && byte(at) < 128 && plain_[byte(at)] && byte(at) != ' ') ++at;
    const bool rule_may_begin = at < text.size() && byte(at) >= 128 && !units_.empty();
    if (rule_may_begin && at > begin) --at;
    out.append(text.substr(begin, at - begin));
    if (at > begin) after_space = false;
    if (at == text.size() || byte(at) != ' ' || !plain_[' ']) return at;
    if (!units_.empty() && at + 1 < text.size() && byte(at + 1) >= 128) return at;
    if (!after_space) out += space_;
    after_space = remove_extra_spaces_;
    ++at;
  }
}

std::string SentencePieceNormalizer::apply(std::string_view text, std::vector<size_t>* places,
                                           Position position) const {
  size_t at = 0;
  while (remove_extra_spaces_ && at < text.size()) {
    const Prefix prefix = normalize_prefix(text.substr(at));
    if (prefix.text != " ") break;
    at += prefix.bytes;
  }
  std::string out;
  size_t end = at;
  const auto append = [&](std::string_view added, size_t place) {
    out += added;
    if (places) places->resize(out.size(), place);
  };
  if (at < text.size()) {
    out.reserve(text.size() + text.size() / 2 + 8);
    if (dummy_prefix_ && position.first) append(space_, at);
    bool after_space = remove_extra_spaces_;
    while (at < text.size()) {
      if (!places) at = append_plain(text, at, after_space, out);
      if (at == text.size()) break;
      Prefix prefix = normalize_prefix(text.substr(at));
      const size_t place = at;
      at += prefix.bytes;
      while (after_space && !prefix.text.empty() && prefix.text[0] == ' ') prefix.text.remove_prefix(1);
      if (prefix.text.empty()) continue;
      for (const char& c : prefix.text) append(c == ' ' ? space_ : std::string_view(&c, 1), place);
      after_space = remove_extra_spaces_ && prefix.text.back() == ' ';
    }
    end = at;
    while (remove_extra_spaces_ && out.ends_with(space_)) {
      out.resize(out.size() - space_.size());
      if (places) end = (*places)[out.size()];
    }
    if (places) places->resize(out.size());
    if (dummy_suffix_ && position.last) append(space_, end);
  }
  if (places) places->push_back(end);
  return out;
}

}  // namespace metroplex::text

#include "text/bpe_model.h"

#include <cstdio>
#include <unordered_set>

#include "base/error.h"
#include "files/json_text.h"
#include "text/utf8.h"

namespace metroplex::text {
namespace {

char32_t last_code_point(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return next_code_point(text, begin);
}

}  // namespace

std::string byte_piece(unsigned char byte) {
  char name[8];
  std::snprintf(name, sizeof name, "<0x%02X>", byte);
  return name;
}

BpeModel::BpeModel(const BpeSpec& spec)
    : byte_level_(spec.byte_level),
      byte_fallback_(spec.byte_fallback),
      fuse_unk_(spec.fuse_unk),
      ignore_merges_(spec.ignore_merges) {
  add_vocabulary(spec);
  add_merges(spec);
  if (spec.unk_token) {
    const auto found = id(*spec.unk_token);
    MPX_CHECK(found, "text", "the unknown token '", files::printable(*spec.unk_token), "' is not in the vocabulary");
    unk_ = *found;
  }
  const ByteAlphabet alphabet;
  for (int byte = 0; byte < 256 && byte_level_; ++byte) {
    byte_entries_[byte] = enter(alphabet.spelling(static_cast<unsigned char>(byte)));
  }
  for (int byte = 0; byte < 128 && !byte_level_; ++byte)
    ascii_entries_[byte] = enter(std::string(1, static_cast<char>(byte)));
  if (byte_level_ && ignore_merges_) {
    for (const auto& [token, id] : ids_) {
      if (auto bytes = alphabet.bytes(token)) whole_.emplace(std::move(*bytes), id);
    }
  }
  if (!byte_level_) find_splits(spec);
}

void BpeModel::add_vocabulary(const BpeSpec& spec) {
  int32_t largest = -1;
  for (const auto& [token, id] : spec.vocab) largest = std::max(largest, id);
  MPX_CHECK(largest >= 0, "text", "the vocabulary is empty");
  tokens_.resize(static_cast<size_t>(largest) + 1);
  present_.resize(tokens_.size());
  for (const auto& [token, id] : spec.vocab) {
    MPX_CHECK(id >= 0 && !present_[id], "text", "tokens '", files::printable(tokens_[id]), "' and '",
              files::printable(token), "' of the vocabulary have the same id ", id);
    tokens_[id] = token;
    present_[id] = true;
  }
  ids_.reserve(spec.vocab.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (present_[id]) ids_.emplace(tokens_[id], static_cast<int32_t>(id));
  }
}

void BpeModel::add_merges(const BpeSpec& spec) {
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const std::string &left = spec.merges[rank].first, &right = spec.merges[rank].second;
    const auto need = [&](const std::string& token) {
      const auto found = id(token);
      MPX_CHECK(found, "text", "merge ", rank, " ('", files::printable(left), "' + '", files::printable(right),
                "') needs the token '", files::printable(token), "', which is not in the vocabulary");
      return *found;
    };
    MPX_CHECK(!left.empty() && !right.empty(), "text", "merge ", rank, " has an empty left or right token");
    const int32_t left_id = need(left), right_id = need(right);
    merges_.set(
        left_id, right_id,
        {spec.merge_ranks.empty() ? static_cast<uint32_t>(rank) : spec.merge_ranks[rank], need(left + right)});
  }
}

// A text cannot be split if its tokens depend on more than adjacent spellings. Unknown characters may be fused,
// dropped or moved after the following byte tokens (as in `tokenizers`). Byte tokens may merge.
void BpeModel::find_splits(const BpeSpec& spec) {
  std::unordered_set<std::string> apart;
  bool all_bytes = byte_fallback_;
  for (int byte = 0; byte < 256; ++byte) {
    apart.insert(byte_piece(static_cast<unsigned char>(byte)));
    all_bytes = all_bytes && id(byte_piece(static_cast<unsigned char>(byte)));
  }
  if (spec.unk_token) apart.insert(*spec.unk_token);
  if (ignore_merges_ || (!all_bytes && (unk_ < 0 || fuse_unk_ || byte_fallback_))) return;
  for (const auto& [left, right] : spec.merges) {
    if (apart.contains(left) || apart.contains(right)) return;
    size_t begin = 0;
    split_points_.join(last_code_point(left), next_code_point(right, begin));
  }
  splittable_ = true;
}

BpeModel::Entry BpeModel::enter(std::string_view character) const {
  Entry entry;
  if (const auto found = id(character)) {
    entry.id = *found;
  } else if (byte_fallback_) {
    for (const char byte : character) {
      const auto token = id(byte_piece(static_cast<unsigned char>(byte)));
      if (!token) return Entry{};
      entry.bytes.push_back(*token);
    }
  }
  return entry;
}

void BpeModel::fill_symbols(std::string_view part, std::vector<int32_t>& symbols,
                            std::vector<TextRange>* ranges) const {
  symbols.clear();
  std::optional<TextRange> unknown;  // pending until the next character that has no byte tokens
  const auto push = [&](int32_t id, TextRange range) {
    symbols.push_back(id);
    if (ranges) ranges->push_back(range);
  };
  Entry made;
  for (size_t position = 0; position < part.size();) {
    const auto lead = static_cast<unsigned char>(part[position]);
    const size_t begin = position, size = byte_level_ ? 1 : code_point_size(lead);
    const Entry* entry = byte_level_ ? &byte_entries_[lead] : lead < 128 ? &ascii_entries_[lead] : &made;
    if (entry == &made) made = enter(part.substr(position, size));
    position += size;
    if (entry->id >= 0) {
      if (unknown) push(unk_, *unknown);
      unknown.reset();
      push(entry->id, {begin, position});
    } else if (!entry->bytes.empty()) {
      for (size_t i = 0; i < entry->bytes.size(); ++i) push(entry->bytes[i], {begin + i, begin + i + 1});
    } else if (unk_ >= 0) {
      if (unknown && !fuse_unk_) push(unk_, *unknown);
      unknown = {unknown && fuse_unk_ ? unknown->begin : begin, position};
    }
  }
  if (unknown) push(unk_, *unknown);
}

void BpeModel::append_ranges(std::string_view word, std::span<const int32_t> ids,
                             std::vector<TextRange>& ranges) const {
  if (ignore_merges_ && ids.size() == 1) {
    ranges.push_back({0, word.size()});
    return;
  }
  std::vector<int32_t> symbols;
  std::vector<TextRange> of_symbols;
  fill_symbols(word, symbols, &of_symbols);
  size_t next = 0;
  for (const int32_t id : ids) {
    // A token's spelling is the concatenation of the symbols merged into it.
    TextRange range = of_symbols.at(next);
    const size_t spelled = tokens_[static_cast<size_t>(id)].size();
    for (size_t bytes = 0; next < symbols.size() && (bytes < spelled || bytes == 0); ++next) {
      bytes += tokens_[static_cast<size_t>(symbols[next])].size();
      range.end = of_symbols[next].end;
    }
    ranges.push_back(range);
  }
}

void BpeModel::encode_part(std::string_view part, BpeScratch& scratch, std::vector<int32_t>& out) const {
  if (part.size() == 1) {
    const auto byte = static_cast<unsigned char>(part[0]);
    const Entry& entry = byte_level_ ? byte_entries_[byte] : ascii_entries_[byte];
    if (entry.id >= 0) {
      out.push_back(entry.id);
      return;
    }
  }
  if (scratch.cache.find(part, out)) return;
  if (ignore_merges_) {
    std::optional<int32_t> whole;
    if (byte_level_) {
      const auto it = whole_.find(std::string(part));
      if (it != whole_.end()) whole = it->second;
    } else {
      whole = id(part);
    }
    if (whole) {
      scratch.cache.keep(part, &*whole, 1);
      out.push_back(*whole);
      return;
    }
  }
  fill_symbols(part, scratch.symbols, nullptr);
  merge_all(merges_, scratch.symbols, scratch.merges);
  scratch.cache.keep(part, scratch.symbols.data(), scratch.symbols.size());
  out.insert(out.end(), scratch.symbols.begin(), scratch.symbols.end());
}

void BpeModel::encode(std::string_view word, BpeScratch& scratch, std::vector<int32_t>& out) const {
  if (splittable_) {
    split_points_.for_each_part(word, [&](std::string_view part) { encode_part(part, scratch, out); });
  } else {
    encode_part(word, scratch, out);
  }
}

const std::string* BpeModel::token(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size() || !present_[id]) return nullptr;
  return &tokens_[id];
}

std::optional<int32_t> BpeModel::id(std::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

}  // namespace metroplex::text

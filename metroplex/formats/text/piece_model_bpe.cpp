#include "text/piece_model.h"

#include <algorithm>
#include <functional>
#include <set>
#include <span>
#include <unordered_set>

#include "text/utf8.h"

namespace metroplex::text {
namespace {

// Returns a spelling that occurs in no text, for pieces that are not text.
std::string hide_spelling(std::string_view text) { return "\xFF" + std::string(text); }

template <class Visit>
void for_each_character(std::string_view text, Visit visit) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t size = code_point_size(static_cast<unsigned char>(text[begin]));
    visit(text.substr(begin, size), begin + size);
    begin += size;
  }
}

void widen_to_characters(std::string_view text, std::vector<TextRange>& ranges) {
  const auto is_inside = [&](size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  for (TextRange& range : ranges) {
    while (is_inside(range.begin)) --range.begin;
    while (is_inside(range.end)) ++range.end;
  }
}

}  // namespace

BpeSpec SentencePieceBpe::make_rules(const SentencePieceFile& file) {
  BpeSpec spec;
  spec.byte_fallback = file.byte_fallback;
  std::unordered_map<std::string_view, float> normal;
  std::set<float, std::greater<>> scores;
  for (const Piece& piece : file.pieces) {
    const auto id = static_cast<int32_t>(spec.vocab.size());
    const bool in_text = piece.type == PieceType::normal || piece.type == PieceType::byte;
    spec.vocab.emplace_back(in_text ? std::string(piece.text) : hide_spelling(piece.text), id);
    if (piece.type == PieceType::unknown) spec.unk_token = hide_spelling(piece.text);
    if (piece.type != PieceType::normal) continue;
    normal.emplace(piece.text, piece.score);
    scores.insert(piece.score);
  }
  std::unordered_map<float, uint32_t> ranks;
  for (const float score : scores) ranks.emplace(score, static_cast<uint32_t>(ranks.size()));
  std::unordered_set<std::string_view> characters;
  for (const auto& [text, score] : normal) {
    for_each_character(text, [&](std::string_view character, size_t) {
      if (normal.contains(character) || !characters.insert(character).second) return;
      spec.vocab.emplace_back(character, static_cast<int32_t>(spec.vocab.size()));
    });
  }
  const auto is_symbol = [&](std::string_view text) { return normal.contains(text) || characters.contains(text); };
  for (const auto& entry : normal) {
    const std::string_view text = entry.first;
    const uint32_t rank = ranks.at(entry.second);
    for_each_character(text, [&](std::string_view, size_t cut) {
      const std::string_view left = text.substr(0, cut), right = text.substr(cut);
      if (right.empty() || !is_symbol(left) || !is_symbol(right)) return;
      spec.merges.emplace_back(left, right);
      spec.merge_ranks.push_back(rank);
    });
  }
  return spec;
}

SentencePieceBpe::SentencePieceBpe(const SentencePieceFile& file)
    : model_(make_rules(file)),
      num_pieces_(static_cast<int32_t>(file.pieces.size())),
      byte_fallback_(file.byte_fallback) {
  ByteTrie::Entries user_defined;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const Piece& piece = file.pieces[id];
    if (piece.type == PieceType::unknown) unknown_ = static_cast<int32_t>(id);
    if (piece.type == PieceType::user_defined) user_defined.emplace_back(piece.text, static_cast<int32_t>(id));
  }
  has_user_defined_ = !user_defined.empty();
  user_defined_ = ByteTrie(std::move(user_defined));
}

std::vector<int32_t> SentencePieceBpe::encode(std::string_view normalized, std::vector<TextRange>* ranges) const {
  ScratchPool<BpeScratch>::Lease scratch(pool_, normalized.size());
  std::vector<int32_t> ids;
  ids.reserve(normalized.size() / 3 + 8);
  const auto encode_part = [&](size_t begin, size_t end) {
    if (begin == end) return;
    const std::string_view part = normalized.substr(begin, end - begin);
    const size_t num_before = ids.size();
    model_.encode(part, *scratch, ids);
    if (!ranges) return;
    model_.append_ranges(part, std::span(ids).subspan(num_before), *ranges);
    for (size_t i = num_before; i < ids.size(); ++i)
      (*ranges)[i] = {(*ranges)[i].begin + begin, (*ranges)[i].end + begin};
  };
  size_t done = 0;
  for (size_t at = 0; has_user_defined_ && at < normalized.size();) {
    ByteTrie::Match match;
    if (user_defined_.begins_with(static_cast<unsigned char>(normalized[at]))) {
      match = user_defined_.longest_prefix(normalized.substr(at));
    }
    if (match.size == 0) {
      ++at;
      continue;
    }
    encode_part(done, at);
    ids.push_back(match.value);
    done = at += match.size;
    if (ranges) ranges->push_back({at - match.size, at});
  }
  encode_part(done, normalized.size());
  if (ranges) widen_to_characters(normalized, *ranges);
  if (model_.num_ids() > num_pieces_ || !byte_fallback_) resolve_unknown(ids, ranges);
  return ids;
}

// Characters that were not merged become bytes or, without byte pieces, one unknown id per run.
void SentencePieceBpe::resolve_unknown(std::vector<int32_t>& ids, std::vector<TextRange>* ranges) const {
  std::vector<int32_t> resolved;
  std::vector<TextRange> settled_ranges;
  resolved.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t id = ids[i];
    if (id >= num_pieces_ && byte_fallback_) {
      for (const char byte : *model_.token(id)) {
        resolved.push_back(*model_.id(byte_piece(static_cast<unsigned char>(byte))));
      }
    } else if (id < num_pieces_ && id != unknown_) {
      resolved.push_back(id);
    } else if (resolved.empty() || resolved.back() != unknown_) {
      resolved.push_back(unknown_);
    } else if (ranges) {
      settled_ranges.back().end = (*ranges)[i].end;
    }
    if (ranges) settled_ranges.resize(resolved.size(), (*ranges)[i]);
  }
  ids.swap(resolved);
  if (ranges) ranges->swap(settled_ranges);
}

}  // namespace metroplex::text

#include "text/piece_model.h"

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_set>

#include "text/utf8.h"

namespace metroplex::text {
namespace {

// A spelling that no text has, for a piece that is not made of text.
std::string hidden(std::string_view text) { return "\xFF" + std::string(text); }

template <class Visit>
void for_each_character(std::string_view text, Visit visit) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t size = code_point_size(static_cast<unsigned char>(text[begin]));
    visit(text.substr(begin, size), begin + size);
    begin += size;
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
    spec.vocab.emplace_back(in_text ? std::string(piece.text) : hidden(piece.text), id);
    if (piece.type == PieceType::unknown) spec.unk_token = hidden(piece.text);
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

std::vector<int32_t> SentencePieceBpe::encode(std::string_view normalized) const {
  ScratchPool<BpeScratch>::Lease scratch(pool_, normalized.size());
  std::vector<int32_t> ids;
  ids.reserve(normalized.size() / 3 + 8);
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
    if (done < at) model_.encode(normalized.substr(done, at - done), *scratch, ids);
    ids.push_back(match.value);
    done = at += match.size;
  }
  if (done < normalized.size()) model_.encode(normalized.substr(done), *scratch, ids);
  if (model_.num_ids() > num_pieces_ || !byte_fallback_) settle_unknown(ids);
  return ids;
}

// Characters that were not joined become bytes or, a run of them, one unknown id.
void SentencePieceBpe::settle_unknown(std::vector<int32_t>& ids) const {
  std::vector<int32_t> settled;
  settled.reserve(ids.size());
  for (const int32_t id : ids) {
    if (id >= num_pieces_ && byte_fallback_) {
      for (const char byte : *model_.token(id)) {
        settled.push_back(*model_.id(byte_piece(static_cast<unsigned char>(byte))));
      }
    } else if (id < num_pieces_ && id != unknown_) {
      settled.push_back(id);
    } else if (settled.empty() || settled.back() != unknown_) {
      settled.push_back(unknown_);
    }
  }
  ids.swap(settled);
}

}  // namespace metroplex::text

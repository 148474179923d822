#include "text/piece_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace metroplex::text {
namespace {

constexpr float kUnknownPenalty = 10.0f;
constexpr float kResetThreshold = 100000.0f;
constexpr double kHalfUlp = 1.0 / 256;  // rounding error of one float addition between 65,536 and 131,072

}  // namespace

UnigramModel::UnigramModel(const SentencePieceFile& file) : byte_ids_(file.byte_fallback ? 256 : 0) {
  ByteTrie::Entries entries;
  float lowest = std::numeric_limits<float>::max(), largest = 0;
  unknown_ = static_cast<int32_t>(file.pieces.size());
  for (const Piece& piece : file.pieces) {
    const auto id = static_cast<int32_t>(scores_.size());
    const bool user_defined = piece.type == PieceType::user_defined;
    // A user-defined symbol takes precedence over any other piece.
    scores_.push_back(user_defined ? static_cast<float>(0.1 * static_cast<double>(piece.text.size() - 1))
                                   : piece.score);
    if (piece.type == PieceType::unknown) unknown_ = id;
    if (piece.type == PieceType::byte) byte_ids_[static_cast<size_t>(parse_byte_piece(piece.text))] = id;
    if (piece.type == PieceType::normal) lowest = std::min(lowest, piece.score);
    if (piece.type != PieceType::normal && !user_defined) continue;
    entries.emplace_back(piece.text, id);
    split_points_.join_all(piece.text);
    largest = std::max(largest, std::abs(scores_.back()));
  }
  trie_ = ByteTrie(std::move(entries));
  for (unsigned c = 0; c < ascii_.size(); ++c) {
    const int32_t node = trie_.child(ByteTrie::kRoot, static_cast<unsigned char>(c));
    ascii_[c] = node >= 0 && trie_.value(node) >= 0 ? trie_.value(node) : unknown_;
  }
  scores_.resize(std::max(scores_.size(), static_cast<size_t>(unknown_) + 1));
  scores_[static_cast<size_t>(unknown_)] = lowest - kUnknownPenalty;
  largest = std::max(largest, std::abs(scores_[static_cast<size_t>(unknown_)]));
  certain_limit_ = kResetThreshold - 1 - largest * WordCache::kMaxBytes;
}

// Calls visit(piece, end) for every piece of `part` that starts at `begin`. If no piece is the single character, the
// unknown piece is visited.
template <class Visit>
void UnigramModel::for_each_piece(std::string_view part, size_t begin, size_t character, Visit visit) const {
  bool alone = false;
  int32_t node = ByteTrie::kRoot;
  for (size_t end = begin; end < part.size();) {
    node = trie_.child(node, static_cast<unsigned char>(part[end++]));
    if (node < 0) break;
    const int32_t piece = trie_.value(node);
    if (piece < 0) continue;
    visit(piece, end);
    alone |= end - begin == character;
  }
  if (!alone) visit(unknown_, begin + character);
}

void UnigramModel::find_best(std::string_view part, float& score, Scratch& scratch) const {
  std::vector<Step>& steps = scratch.steps;
  steps.assign(part.size() + 1, Step{});
  steps[0].score = score;
  size_t farthest = 0;
  for (size_t begin = 0; begin < part.size();) {
    const float so_far = steps[begin].score;
    if (std::abs(so_far) > kResetThreshold) {
      for (size_t i = begin; i <= std::max(begin, farthest); ++i) {
        if (i == begin || steps[i].begin >= 0) steps[i].score -= so_far;
      }
    }
    const float before = steps[begin].score;
    const size_t character = code_point_size(static_cast<unsigned char>(part[begin]));
    for_each_piece(part, begin, character, [&](int32_t piece, size_t end) {
      const float total = scores_[static_cast<size_t>(piece)] + before;
      Step& step = steps[end];
      if (step.begin < 0 || total > step.score) step = {total, static_cast<int32_t>(begin), piece};
      farthest = std::max(farthest, end);
    });
    begin += character;
  }
  score = steps[part.size()].score;
  scratch.path.clear();
  for (size_t end = part.size(); end > 0; end = static_cast<size_t>(steps[end].begin))
    scratch.path.push_back(static_cast<int32_t>(end));
}

// Rounding changes a float sum by at most half an ulp per piece. A segmentation that leads all others by more than
// both errors is the best for any previous document score. Rounding is monotonic, so the best rounded sum is the
// maximum over all segmentations.
bool UnigramModel::is_certain(std::string_view part, std::vector<std::pair<double, double>>& two_best) const {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  two_best.assign(part.size() + 1, {kNone, kNone});
  two_best[0].first = 0;
  size_t num_characters = 0;
  bool known = true;
  for (size_t begin = 0; begin < part.size(); ++num_characters) {
    const size_t character = code_point_size(static_cast<unsigned char>(part[begin]));
    const auto from = two_best[begin];
    for_each_piece(part, begin, character, [&](int32_t piece, size_t end) {
      known &= piece != unknown_;
      for (const double before : {from.first, from.second}) {
        const double total = before + double{scores_[static_cast<size_t>(piece)]};
        auto& [best, second] = two_best[end];
        if (total > best) {
          second = best;
          best = total;
        } else {
          second = std::max(second, total);
        }
      }
    });
    begin += character;
  }
  const auto [best, second] = two_best[part.size()];
  return known && best - second > 2 * kHalfUlp * 1.01 * static_cast<double>(num_characters);
}

void UnigramModel::append_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  if (!byte_ids_.empty()) {
    for (const char c : text) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  } else if (ids.empty() || ids.back() != unknown_) {
    ids.push_back(unknown_);
  }
}

// `offset`: the position of the part in the text of the ranges.
void UnigramModel::append_path(std::string_view part, size_t offset, const Scratch& scratch,
                               std::vector<int32_t>& ids, std::vector<TextRange>* ranges) const {
  for (auto end = scratch.path.rbegin(); end != scratch.path.rend(); ++end) {
    const Step& step = scratch.steps[static_cast<size_t>(*end)];
    const TextRange range{static_cast<size_t>(step.begin), static_cast<size_t>(*end)};
    const size_t num_before = ids.size();
    if (step.piece == unknown_) append_unknown(part.substr(range.begin, range.end - range.begin), ids);
    else ids.push_back(step.piece);
    if (!ranges) continue;
    if (ids.size() == num_before) ranges->back().end = offset + range.end;
    else ranges->resize(ids.size(), {offset + range.begin, offset + range.end});
  }
}

void UnigramModel::encode_part(std::string_view part, Scratch& scratch, float& score,
                               std::vector<int32_t>& ids) const {
  if (part.size() == 1 && std::abs(score) <= kResetThreshold) {  // only one segmentation exists
    const int32_t piece = ascii_[static_cast<unsigned char>(part[0])];
    score += scores_[static_cast<size_t>(piece)];
    if (piece == unknown_) {
      append_unknown(part, ids);
    } else {
      ids.push_back(piece);
    }
    return;
  }
  const bool usual = part.size() <= WordCache::kMaxBytes && std::abs(score) < certain_limit_;
  const size_t num_before = ids.size();
  const bool seen = usual && scratch.cache.find(part, ids);
  if (seen && ids.size() > num_before) {
    for (size_t i = num_before; i < ids.size(); ++i) score += scores_[static_cast<size_t>(ids[i])];
    return;
  }
  find_best(part, score, scratch);
  append_path(part, 0, scratch, ids, nullptr);
  // If the best segmentation of a part is not certain, zero ids are cached for it, to skip a second is_certain.
  if (usual && !seen) {
    const bool certain = is_certain(part, scratch.two_best);
    scratch.cache.keep(part, ids.data() + num_before, certain ? ids.size() - num_before : 0);
  }
}

std::vector<int32_t> UnigramModel::encode(std::string_view normalized, std::vector<TextRange>* ranges) const {
  ScratchPool<Scratch>::Lease scratch(pool_, normalized.size());
  std::vector<int32_t> ids;
  ids.reserve(normalized.size() / 3 + 8);
  float score = 0;
  split_points_.for_each_part(normalized, [&](std::string_view part) {
    if (!ranges) {
      encode_part(part, *scratch, score, ids);
      return;
    }
    find_best(part, score, *scratch);
    append_path(part, static_cast<size_t>(part.data() - normalized.data()), *scratch, ids, ranges);
  });
  return ids;
}

}  // namespace metroplex::text

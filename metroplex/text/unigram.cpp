#include "text/unigram.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "text/utf8.h"

namespace metroplex::text {
namespace {

constexpr float kUnknownPenalty = 10.0f;

}  // namespace

UnigramModel::UnigramModel(const std::vector<Piece>& pieces) : byte_ids_(256, -1) {
  SortedPieces sorted;
  lowest_ = std::numeric_limits<float>::max();
  highest_ = std::numeric_limits<float>::lowest();
  for (const Piece& piece : pieces) {
    const auto id = static_cast<int32_t>(scores_.size());
    scores_.push_back(piece.score);
    types_.push_back(piece.type);
    if (piece.type == PieceType::unknown) unknown_ = id;
    if (piece.type == PieceType::byte && piece.text.size() == 6) {
      byte_ids_[std::strtoul(std::string(piece.text.substr(3, 2)).c_str(), nullptr, 16) & 0xFF] = id;
    }
    if (piece.type == PieceType::normal) {
      lowest_ = std::min(lowest_, piece.score);
      highest_ = std::max(highest_, piece.score);
    }
    const bool searched = piece.type == PieceType::normal || piece.type == PieceType::user_defined;
    if (searched) sorted.emplace_back(piece.text, id);
  }
  if (std::count(byte_ids_.begin(), byte_ids_.end(), -1) > 0) byte_ids_.clear();
  build_trie(std::move(sorted));
}

// Breadth first: a node is the range of sorted pieces that begin with its path.
void UnigramModel::build_trie(SortedPieces pieces) {
  std::sort(pieces.begin(), pieces.end());
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges{{0, pieces.size(), 0}};
  nodes_.resize(1);
  for (size_t node = 0; node < nodes_.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    while (begin < end && pieces[begin].first.size() == depth) nodes_[node].piece = pieces[begin++].second;
    nodes_[node].first_child = static_cast<int32_t>(nodes_.size());
    while (begin < end) {
      const char label = pieces[begin].first[depth];
      size_t stop = begin;
      while (stop < end && pieces[stop].first[depth] == label) ++stop;
      nodes_.push_back({0, 0, -1, static_cast<unsigned char>(label)});
      ranges.push_back({begin, stop, depth + 1});
      ++nodes_[node].num_children;
      begin = stop;
    }
  }
}

int32_t UnigramModel::child(int32_t node, unsigned char label) const {
  const Node* first = nodes_.data() + nodes_[node].first_child;
  const Node* last = first + nodes_[node].num_children;
  const Node* found =
      std::lower_bound(first, last, label, [](const Node& n, unsigned char l) { return n.label < l; });
  return found != last && found->label == label ? static_cast<int32_t>(found - nodes_.data()) : -1;
}

float UnigramModel::score_of(int32_t piece, size_t length) const {
  // A symbol that the user has defined wins over anything else.
  if (types_[piece] == PieceType::user_defined)
    return static_cast<float>(static_cast<float>(length) * highest_ - 0.1);
  return scores_[piece];
}

void UnigramModel::find_best(std::string_view text, std::vector<Step>& steps) const {
  steps.assign(text.size() + 1, Step{});
  const auto offer = [&](size_t begin, size_t end, int32_t piece, float score) {
    const float total = score + steps[begin].score;
    Step& step = steps[end];
    if (step.begin < 0 || total > step.score) step = {total, static_cast<int32_t>(begin), piece};
  };
  for (size_t begin = 0; begin < text.size();) {
    const size_t character = std::min(code_point_size(static_cast<unsigned char>(text[begin])), text.size() - begin);
    bool alone = false;
    int32_t node = 0;
    for (size_t end = begin; end < text.size();) {
      node = child(node, static_cast<unsigned char>(text[end++]));
      if (node < 0) break;
      if (nodes_[node].piece < 0) continue;
      offer(begin, end, nodes_[node].piece, score_of(nodes_[node].piece, end - begin));
      alone |= end - begin == character;
    }
    if (!alone) offer(begin, begin + character, unknown_, lowest_ - kUnknownPenalty);
    begin += character;
  }
}

void UnigramModel::encode(std::string_view normalized, std::vector<int32_t>& ids) const {
  std::vector<Step> steps;
  find_best(normalized, steps);
  std::vector<std::pair<size_t, size_t>> path;
  for (size_t end = normalized.size(); end > 0; end = static_cast<size_t>(steps[end].begin)) {
    path.emplace_back(static_cast<size_t>(steps[end].begin), end);
  }
  std::reverse(path.begin(), path.end());
  bool after_unknown = false;
  for (const auto& [begin, end] : path) {
    const int32_t piece = steps[end].piece;
    const bool unknown = piece == unknown_;
    if (unknown && !byte_ids_.empty()) {
      for (size_t i = begin; i < end; ++i) ids.push_back(byte_ids_[static_cast<unsigned char>(normalized[i])]);
    } else if (!unknown || !after_unknown) {
      ids.push_back(piece);
    }
    after_unknown = unknown;
  }
}

}  // namespace metroplex::text

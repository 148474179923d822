// The balanced partition of sequence_cut.h: assigns arcs of a circle, one rank after another.
#include "plan/sequence_pieces.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "base/error.h"

namespace metroplex::plan {
namespace {

// The unassigned part of the sequence, joined into a circle. Coordinates count its tokens from 0 to tokens() and
// continue into a second turn.
struct Circle {
  std::vector<SequencePiece> pieces;
  int64_t samples = 0;
  // Tokens and area before each of 2 n + 1 piece borders, over two turns.
  std::vector<int64_t> tokens_before, area_before;

  size_t size() const { return pieces.size(); }
  const SequencePiece& piece(size_t i) const { return pieces[i % pieces.size()]; }
  int64_t tokens() const { return tokens_before[size()]; }
  int64_t area() const { return area_before[size()]; }
  // True if a cut before piece i splits no document that is not already split there.
  bool free(size_t i) const {
    const SequencePiece &next = piece(i), &before = piece(i + size() - 1);
    return next.begins || before.end() != next.first;
  }

  void sum_up() {
    tokens_before.assign(1, 0), area_before.assign(1, 0);
    for (size_t i = 0; i < 2 * size(); ++i) {
      tokens_before.push_back(tokens_before.back() + piece(i).count);
      area_before.push_back(area_before.back() + piece(i).sum_of(piece(i).count, samples));
    }
  }
};

// `count` tokens that start at `begin`; begin < tokens().
struct Arc {
  int64_t begin = 0, count = 0;
};

struct Wanted {
  int64_t tokens = 0;              // size of an exact arc
  double area = 0, tolerance = 0;  // area of an arc of `tokens`; differences up to `tolerance` count as equal
  int64_t least_tokens = 0, most_tokens = 0;
  double least_area = 0, most_area = 0;
};

// Bounds for the next rank's load, given the load `left` for `ranks` ranks and the mean `mean` over all ranks. Within
// them, neither that load nor the mean of the remaining ranks differs from `mean` by more than `slack`.
std::pair<double, double> bounds(double left, double ranks, double mean, double slack) {
  const double now = left / ranks, room = slack * mean, others = ranks - 1;
  return {std::max({now - room, mean - room, left - others * (mean + room)}),
          std::min({now + room, mean + room, left - others * (mean - room)})};
}

std::optional<Arc> free_arc(const Circle& circle, const Wanted& wanted, int64_t multiple) {
  constexpr int64_t kTries = 16;
  const size_t n = circle.size();
  size_t least = 0, best = 0, most = 0;  // possible ends of the arc: first, nearest to the area, last
  for (size_t i = 0; i < n; ++i) {
    const auto tokens = [&](size_t end) { return circle.tokens_before[end] - circle.tokens_before[i]; };
    const auto area = [&](size_t end) {
      return static_cast<double>(circle.area_before[end] - circle.area_before[i]);
    };
    const size_t last = i + n;
    least = std::max(least, i), best = std::max(best, i), most = std::max(most, i);
    while (least < last && (tokens(least) < wanted.least_tokens || area(least) < wanted.least_area)) ++least;
    while (best < last && area(best) < wanted.area) ++best;
    while (most < last && tokens(most + 1) <= wanted.most_tokens && area(most + 1) <= wanted.most_area) ++most;
    if (least > most || !circle.free(i)) continue;
    const auto from = static_cast<int64_t>(std::clamp(best, least, most));
    for (int64_t step = 0; step < kTries; ++step) {  // 0, -1, 1, -2, ...
      const int64_t end = from + (step % 2 == 0 ? step / 2 : -(step + 1) / 2);
      if (end < static_cast<int64_t>(least) || end > static_cast<int64_t>(most)) continue;
      const auto border = static_cast<size_t>(end);
      if (circle.free(border) && tokens(border) % multiple == 0) return Arc{circle.tokens_before[i], tokens(border)};
    }
  }
  return std::nullopt;
}

// Returns the arc of `wanted.tokens` whose area is nearest. It prefers the first arc within the tolerance that starts
// or ends between documents. Between piece borders the area of an arc changes linearly with its start.
Arc exact_arc(const Circle& circle, const Wanted& wanted) {
  const int64_t count = wanted.tokens, all = circle.tokens();
  size_t head = 0, tail = 0;  // pieces of the arc's first token and of the first token after it
  while (circle.tokens_before[tail + 1] <= count) ++tail;
  int64_t area =
      circle.area_before[tail] + circle.piece(tail).sum_of(count - circle.tokens_before[tail], circle.samples);
  Arc nearest{0, count};
  double distance = std::abs(static_cast<double>(area) - wanted.area);
  for (int64_t begin = 0; begin < all;) {
    const SequencePiece &first = circle.piece(head), &behind = circle.piece(tail);
    const int64_t of_first = begin - circle.tokens_before[head],
                  of_behind = begin + count - circle.tokens_before[tail];
    const bool free = (of_first == 0 && circle.free(head)) || (of_behind == 0 && circle.free(tail));
    if (free && std::abs(static_cast<double>(area) - wanted.area) <= wanted.tolerance) return {begin, count};
    const int64_t steps = std::min(first.count - of_first, behind.count - of_behind);
    const int64_t slope = (behind.area + of_behind * circle.samples) - (first.area + of_first * circle.samples);
    const auto try_at = [&](int64_t step) {
      const double off = std::abs(static_cast<double>(area + step * slope) - wanted.area);
      if (off < distance) distance = off, nearest = {begin + step, count};
    };
    try_at(0);
    if (slope != 0) {
      const double at = (wanted.area - static_cast<double>(area)) / static_cast<double>(slope);
      if (at > 0 && at < static_cast<double>(steps)) {
        const auto whole = static_cast<int64_t>(at);
        try_at(whole);
        if (whole + 1 < steps) try_at(whole + 1);
      }
    }
    area += steps * slope;
    begin += steps;
    if (of_first + steps == first.count) ++head;
    if (of_behind + steps == behind.count) ++tail;
  }
  return nearest;
}

SequencePiece take_part(const Circle& circle, const SequencePiece& piece, int64_t offset, int64_t count) {
  SequencePiece part = piece;
  part.first += offset, part.count = count;
  part.area += offset * circle.samples;
  part.begins = piece.begins && offset == 0;
  return part;
}

PositionRuns take(Circle& circle, const Arc& arc) {
  std::vector<SequencePiece> left, taken;
  const int64_t all = circle.tokens(), end = arc.begin + arc.count;
  const auto deal = [&](const SequencePiece& piece, int64_t at, int64_t from, int64_t to, bool takes) {
    const int64_t begin = std::max(at, from), stop = std::min(at + piece.count, to);
    if (begin < stop) (takes ? taken : left).push_back(take_part(circle, piece, begin - at, stop - begin));
  };
  for (size_t i = 0; i < circle.size(); ++i) {
    const int64_t at = circle.tokens_before[i];
    const int64_t wrapped = std::max<int64_t>(0, end - all);  // part of the arc at the start of the circle
    deal(circle.pieces[i], at, 0, wrapped, true);
    deal(circle.pieces[i], at, wrapped, arc.begin, false);
    deal(circle.pieces[i], at, arc.begin, std::min(end, all), true);
    deal(circle.pieces[i], at, end, all, false);
  }
  circle.pieces = std::move(left);
  circle.sum_up();
  PositionRuns runs;
  for (const SequencePiece& piece : taken) {
    if (!runs.empty() && runs.back().end() == piece.first) runs.back().count += piece.count;
    else runs.push_back({piece.first, piece.count});
  }
  return runs;
}

}  // namespace

std::vector<PositionRuns> balanced_cut(const SequencePieces& sequence, const SequenceCutRequest& request) {
  Circle circle{sequence.pieces, sequence.samples, {}, {}};
  circle.sum_up();
  const auto ranks = static_cast<double>(request.cp);
  const double mean_tokens = static_cast<double>(circle.tokens()) / ranks,
               mean_area = static_cast<double>(circle.area()) / ranks;
  std::vector<PositionRuns> cut;
  for (int left = request.cp; left > 1; --left) {
    const auto tokens = static_cast<double>(circle.tokens()), area = static_cast<double>(circle.area());
    Wanted wanted;
    wanted.tokens = circle.tokens() / request.multiple / left * request.multiple;
    wanted.area = area * static_cast<double>(wanted.tokens) / tokens;
    const auto [least_tokens, most_tokens] = bounds(tokens, left, mean_tokens, request.token_slack);
    // Every rank gets at least `multiple` tokens.
    wanted.least_tokens = std::max(request.multiple, static_cast<int64_t>(std::ceil(least_tokens)));
    wanted.most_tokens =
        std::min(circle.tokens() - (left - 1) * request.multiple, static_cast<int64_t>(std::floor(most_tokens)));
    std::tie(wanted.least_area, wanted.most_area) = bounds(area, left, mean_area, request.area_slack);
    wanted.tolerance = std::min(wanted.most_area - wanted.area, wanted.area - wanted.least_area);
    std::optional<Arc> arc;
    if (request.token_slack > 0) arc = free_arc(circle, wanted, request.multiple);
    cut.push_back(take(circle, arc ? *arc : exact_arc(circle, wanted)));
  }
  if (circle.size() > 0) cut.push_back(take(circle, {0, circle.tokens()}));
  std::sort(cut.begin(), cut.end(),
            [](const PositionRuns& a, const PositionRuns& b) { return a[0].first < b[0].first; });
  return cut;
}

}  // namespace metroplex::plan

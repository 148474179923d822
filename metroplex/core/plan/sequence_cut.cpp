#include "plan/sequence_cut.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "plan/sequence_pieces.h"

namespace metroplex::plan {
namespace {

void append(PositionRuns& runs, const PositionRun& run) {
  if (run.count == 0) return;
  if (!runs.empty() && runs.back().end() == run.first) runs.back().count += run.count;
  else runs.push_back(run);
}

// Returns part `i` of `parts` parts, which differ by at most one unit of `multiple` tokens.
PositionRun even_part(int64_t length, int64_t parts, int64_t i, int64_t multiple) {
  const int64_t units = length / multiple, begin = units * i / parts, end = units * (i + 1) / parts;
  return {begin * multiple, (end - begin) * multiple};
}

void check_request(int64_t length, const SequenceCutRequest& request) {
  const int64_t cp = request.cp, multiple = request.multiple;
  MPX_CHECK(cp >= 1, "plan", "a sequence is cut for ", cp, " ranks; choose 1 or more");
  MPX_CHECK(multiple >= 1 && length % multiple == 0, "plan", "a sequence of ", length,
            " tokens cannot be divided into multiples of ", multiple, "; choose a length that is a multiple of it");
  MPX_CHECK(length >= cp * multiple, "plan", "a sequence of ", length, " tokens is too short for ", cp,
            " ranks with a multiple of ", multiple, " each; choose fewer ranks or a longer sequence");
  MPX_CHECK(request.token_slack >= 0 && request.token_slack <= 1 && request.area_slack >= 0, "plan",
            "the slack of tokens ", request.token_slack, " must be in 0 to 1, that of the area ", request.area_slack,
            " at least 0");
  if (request.kind != SequenceCutKind::zigzag) return;
  MPX_CHECK(length % (2 * cp) == 0, "plan", "zigzag cuts a sequence into 2 cp = ", 2 * cp, " equal chunks, and ",
            length, " tokens are not a multiple of that; choose a multiple, or the balanced cut");
  MPX_CHECK(length / cp % multiple == 0, "plan", "zigzag gives a rank ", length / cp, " tokens, not a multiple of ",
            multiple, "; choose another length, or the balanced cut");
}

// Calls on_part(piece, offset, count) for each part of a piece in `run`.
template <class OnPart>
void for_each_part(const SequencePieces& sequence, const PositionRun& run, const OnPart& on_part) {
  auto piece = std::upper_bound(sequence.pieces.begin(), sequence.pieces.end(), run.first,
                                [](int64_t position, const SequencePiece& piece) { return position < piece.end(); });
  for (int64_t at = run.first; at < run.end(); ++piece) {
    const int64_t end = std::min(run.end(), piece->end());
    on_part(*piece, at - piece->first, end - at);
    at = end;
  }
}

struct OwnedRun {
  PositionRun run;
  int rank = 0;
};
std::vector<OwnedRun> owned_runs(const SequenceCut& cut) {
  std::vector<OwnedRun> all;
  for (size_t rank = 0; rank < cut.ranks.size(); ++rank) {
    for (const PositionRun& run : cut.ranks[rank]) all.push_back({run, static_cast<int>(rank)});
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.run.first < b.run.first; });
  return all;
}

double ratio(const std::vector<int64_t>& loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (sum == 0) return 1;
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) * static_cast<double>(loads.size()) / sum;
}

}  // namespace

PositionRuns merged(std::vector<PositionRun> runs) {
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  PositionRuns out;
  for (const PositionRun& run : runs) {
    if (!out.empty() && run.first <= out.back().end())
      out.back().count = std::max(out.back().end(), run.end()) - out.back().first;
    else out.push_back(run);
  }
  return out;
}

int64_t num_positions(const PositionRuns& runs) {
  int64_t count = 0;
  for (const PositionRun& run : runs) count += run.count;
  return count;
}

// The area of a document with this many tokens is below 2^61, and the balanced partition adds it twice.
constexpr int64_t kMostPositions = (int64_t{1} << 31) - 1;

SequencePieces sequence_pieces(const DocumentLengths& documents) {
  MPX_CHECK(!documents.empty(), "plan", "a cut needs the documents of at least one sample");
  SequencePieces out;
  out.samples = static_cast<int64_t>(documents.size());
  std::vector<int64_t> begins;
  for (size_t s = 0; s < documents.size(); ++s) {
    int64_t at = 0;
    for (const int64_t length : documents[s]) {
      MPX_CHECK(length > 0, "plan", "sample ", s, " has a document of ", length, " tokens; leave it out");
      MPX_CHECK(length <= kMostPositions - at, "plan", "the documents of sample ", s, " have more than ",
                kMostPositions, " tokens together, the most of train.seq_length; leave some out");
      begins.push_back(at);
      at += length;
    }
    MPX_CHECK(at > 0 && (s == 0 || at == out.length), "plan", "the documents of sample ", s, " have ", at,
              " tokens together, those of sample 0 have ", out.length,
              "; samples that are divided together need the same length above 0");
    out.length = at;
  }
  std::sort(begins.begin(), begins.end());
  std::vector<size_t> index(documents.size(), 0);    // current document of each sample
  std::vector<int64_t> starts(documents.size(), 0);  // its start
  for (size_t i = 0; i < begins.size();) {
    const int64_t at = begins[i];
    size_t same = i;
    while (same < begins.size() && begins[same] == at) ++same;
    SequencePiece piece;
    piece.first = at;
    piece.count = (same < begins.size() ? begins[same] : out.length) - at;
    piece.begins = same - i == documents.size();
    piece.earliest = at;
    for (size_t s = 0; s < documents.size(); ++s) {
      while (starts[s] + documents[s][index[s]] <= at) starts[s] += documents[s][index[s]++];
      piece.area += at - starts[s] + 1;
      piece.earliest = std::min(piece.earliest, starts[s]);
    }
    out.pieces.push_back(piece);
    i = same;
  }
  return out;
}

SequenceCut cut_sequence(const DocumentLengths& documents, const SequenceCutRequest& request) {
  const SequencePieces sequence = sequence_pieces(documents);
  const int64_t length = sequence.length, cp = request.cp;
  check_request(length, request);
  SequenceCut cut{length, {}};
  if (request.kind == SequenceCutKind::balanced) {
    cut.ranks = balanced_cut(sequence, request);
    return cut;
  }
  cut.ranks.resize(static_cast<size_t>(cp));
  for (int64_t rank = 0; rank < cp; ++rank) {
    PositionRuns& runs = cut.ranks[static_cast<size_t>(rank)];
    if (request.kind == SequenceCutKind::contiguous) {
      append(runs, even_part(length, cp, rank, request.multiple));
    } else {
      append(runs, even_part(length, 2 * cp, rank, 1));
      append(runs, even_part(length, 2 * cp, 2 * cp - 1 - rank, 1));
    }
  }
  return cut;
}

CutLoad cut_load(const DocumentLengths& documents, const SequenceCut& cut) {
  const SequencePieces sequence = sequence_pieces(documents);
  MPX_ASSERT(sequence.length == cut.length, "a cut of another length");
  CutLoad load;
  for (const PositionRuns& runs : cut.ranks) {
    int64_t area = 0;
    for (const PositionRun& run : runs) {
      for_each_part(sequence, run, [&](const SequencePiece& piece, int64_t offset, int64_t count) {
        area += piece.sum_of(offset + count, sequence.samples) - piece.sum_of(offset, sequence.samples);
      });
    }
    load.tokens.push_back(num_positions(runs));
    load.area.push_back(area);
  }
  load.token_ratio = ratio(load.tokens);
  load.area_ratio = ratio(load.area);
  return load;
}

std::vector<std::vector<PositionRuns>> seen_keys(const DocumentLengths& documents, const SequenceCut& cut) {
  const SequencePieces sequence = sequence_pieces(documents);
  MPX_ASSERT(sequence.length == cut.length, "a cut of another length");
  const std::vector<OwnedRun> owners = owned_runs(cut);
  std::vector<std::vector<PositionRuns>> seen(cut.ranks.size(), std::vector<PositionRuns>(cut.ranks.size()));
  for (size_t reader = 0; reader < cut.ranks.size(); ++reader) {
    std::vector<PositionRun> keys;
    for (const PositionRun& run : cut.ranks[reader]) {
      for_each_part(sequence, run, [&](const SequencePiece& piece, int64_t offset, int64_t count) {
        keys.push_back({piece.earliest, piece.first + offset + count - piece.earliest});
      });
    }
    for (const PositionRun& run : merged(std::move(keys))) {
      auto owner =
          std::upper_bound(owners.begin(), owners.end(), run.first,
                           [](int64_t position, const OwnedRun& owned) { return position < owned.run.end(); });
      for (; owner != owners.end() && owner->run.first < run.end(); ++owner) {
        const int64_t begin = std::max(run.first, owner->run.first), end = std::min(run.end(), owner->run.end());
        append(seen[reader][static_cast<size_t>(owner->rank)], {begin, end - begin});
      }
    }
  }
  return seen;
}

}  // namespace metroplex::plan

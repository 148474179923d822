#include "step/sequence_part.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/error.h"
#include "config/derived.h"
#include "nn/context_attention.h"
#include "plan/sequence_cut.h"

namespace metroplex::step {
namespace {

using DocumentRanges = std::vector<plan::PositionRun>;

// Maps position runs of the concatenated document ranges to positions in the sample.
plan::PositionRuns map_to_sample(const plan::PositionRuns& ranges, const DocumentRanges& pieces) {
  std::vector<nn::IndexRange> joined;
  for (const plan::PositionRun& piece : pieces) joined.push_back({piece.first, piece.count});
  std::vector<plan::PositionRun> all;
  for (const plan::PositionRun& run : ranges) {
    for (const nn::IndexRange& part : nn::narrow_ranges(joined, run.first, run.count))
      all.push_back({part.first, part.count});
  }
  return plan::merged(std::move(all));
}

// Sets all_rows, all_ranges, and rank_rows if ranks have different row counts. `cut` refers to the concatenated
// document ranges.
void set_rows(nn::Microbatch& part, const plan::SequenceCut& cut, const DocumentRanges& pieces) {
  const auto ranks = static_cast<int64_t>(cut.ranks.size());
  part.sequence.all_rows = at::empty({cut.length}, at::kLong);
  int64_t* const begin = part.sequence.all_rows.mutable_data_ptr<int64_t>();
  int64_t* next = begin;
  bool even = true;
  for (const plan::PositionRuns& ranges : cut.ranks) {
    const int64_t count = plan::num_positions(ranges);
    even = even && count * ranks == cut.length;
    part.sequence.rank_rows.push_back({next - begin, count});
    for (const plan::PositionRun& run : map_to_sample(ranges, pieces)) {
      part.sequence.all_ranges.push_back({run.first, run.count});
      for (int64_t i = 0; i < run.count; ++i) *next++ = run.first + i;
    }
  }
  if (!even) return;
  part.sequence.rank_rows.clear();
  part.sequence.all_rows = part.sequence.all_rows.view({ranks, -1});
}

// Converts positions of one rank to its row numbers. Each run of `positions` must be inside one run of `ranges`.
std::vector<nn::IndexRange> to_rows(const plan::PositionRuns& positions, const plan::PositionRuns& ranges) {
  std::vector<nn::IndexRange> rows;
  size_t i = 0;
  int64_t before = 0;  // rows of the runs before index i
  for (const plan::PositionRun& part : positions) {
    while (ranges[i].end() <= part.first) before += ranges[i++].count;
    MPX_ASSERT(part.first >= ranges[i].first && part.end() <= ranges[i].end(), "keys that their rank does not hold");
    rows.push_back({before + part.first - ranges[i].first, part.count});
  }
  return rows;
}

// [reader][owner]: positions whose keys are sent. If the documents are unknown, all positions of the owner.
std::vector<std::vector<plan::PositionRuns>> find_sent_keys(const plan::DocumentLengths& documents,
                                                            const plan::SequenceCut& cut, bool known) {
  if (known) return plan::seen_keys(documents, cut);
  return std::vector<std::vector<plan::PositionRuns>>(cut.ranks.size(), cut.ranks);
}

// Key transfers between groups of `neighbours` ranks, for the group of `rank`.
nn::KeyExchange plan_key_transfer(const std::vector<std::vector<plan::PositionRuns>>& seen,
                                  const plan::SequenceCut& cut, int rank, int neighbours) {
  const auto groups = cut.ranks.size() / static_cast<size_t>(neighbours),
             mine = static_cast<size_t>(rank / neighbours);
  // Rows of the owners, concatenated by rank, that any of the readers sees.
  const auto rows = [&](size_t readers, size_t owners) {
    std::vector<nn::IndexRange> all;
    int64_t before = 0;
    for (size_t i = 0; i < static_cast<size_t>(neighbours); ++i) {
      const size_t owner = owners * static_cast<size_t>(neighbours) + i;
      plan::PositionRuns keys;
      for (size_t j = 0; j < static_cast<size_t>(neighbours); ++j) {
        const plan::PositionRuns& of_one = seen[readers * static_cast<size_t>(neighbours) + j][owner];
        keys.insert(keys.end(), of_one.begin(), of_one.end());
      }
      for (const nn::IndexRange& run : to_rows(plan::merged(std::move(keys)), cut.ranks[owner]))
        all.push_back({before + run.first, run.count});
      before += plan::num_positions(cut.ranks[owner]);
    }
    return all;
  };
  nn::KeyExchange keys;
  keys.sent.resize(groups), keys.received.resize(groups);
  for (size_t other = 0; other < groups; ++other) {
    if (other == mine) continue;
    keys.sent[other] = rows(other, mine);
    keys.received[other] = rows(mine, other);
  }
  return keys;
}

// Documents of all samples, concatenated.
std::vector<nn::IndexRange> document_ranges(const plan::DocumentLengths& documents) {
  std::vector<nn::IndexRange> ranges;
  int64_t first = 0;
  for (const std::vector<int64_t>& of_sample : documents) {
    for (const int64_t length : of_sample) {
      ranges.push_back({first, length});
      first += length;
    }
  }
  return ranges;
}

}  // namespace

SequenceSharding sequence_sharding(const config::Parallel& parallel, const comm::Group& cp) {
  const std::vector<int64_t> levels = config::context_levels(parallel);
  SequenceSharding parts;
  parts.ranks = cp.size(), parts.rank = cp.index();
  parts.kind = parallel.context_parallel_cut;
  parts.multiple = config::context_multiple(parallel);
  parts.token_slack = parallel.context_parallel_token_slack;
  parts.area_slack = parallel.context_parallel_area_slack;
  parts.neighbours = levels.empty() ? 1 : static_cast<int>(levels[0]);
  const std::vector<config::CpCommType> types = config::cp_comm_types(parallel);
  parts.lists = std::any_of(types.begin(), types.end(), [](auto type) { return type != config::CpCommType::a2a; });
  return parts;
}

namespace {

// `documents` are the lengths of the concatenated document ranges.
nn::Microbatch shard_rows(const nn::Microbatch& whole, const plan::DocumentLengths& documents,
                          const DocumentRanges& pieces, const SequenceSharding& parts) {
  plan::SequenceCutRequest request;
  request.kind = parts.kind;
  request.cp = parts.ranks;
  request.multiple = parts.multiple;
  const bool known = !whole.tokens.is_meta();
  request.token_slack = known ? parts.token_slack : 0;
  request.area_slack = parts.area_slack;
  const plan::SequenceCut cut = plan::cut_sequence(documents, request);
  nn::Microbatch part = whole;
  set_rows(part, cut, pieces);
  part.sequence.all_rows = part.sequence.all_rows.to(whole.tokens.device());
  const nn::Positions mine = nn::rank_positions(part, parts.rank);
  part.sequence.rows = mine.rows, part.sequence.row_ranges = mine.ranges;
  part.sequence.length = whole.tokens.size(1);
  if (parts.ranks > 1 && parts.lists && (whole.documents.ids.defined() || parts.token_slack > 0)) {
    const auto seen = find_sent_keys(documents, cut, known);
    part.sequence.keys = plan_key_transfer(seen, cut, parts.rank, 1);
    if (known && whole.documents.offsets.defined()) part.documents.ranges = document_ranges(documents);
    if (parts.neighbours > 1) part.sequence.group_keys = plan_key_transfer(seen, cut, parts.rank, parts.neighbours);
  }
  for (at::Tensor* x : {&part.tokens, &part.labels, &part.loss_mask, &part.position_ids}) {
    if (x->defined()) *x = nn::select_rows(*x, 1, part.sequence.rows);
  }
  return part;
}

}  // namespace

plan::DocumentLengths document_lengths(const nn::Microbatch& batch) {
  const int64_t b = batch.tokens.size(0), s = batch.tokens.size(1);
  if (!batch.documents.ids.defined() || batch.documents.ids.is_meta()) return {{s}};
  plan::DocumentLengths lengths(static_cast<size_t>(b));
  const at::Tensor all = batch.documents.ids.contiguous();
  const int64_t* ids = all.const_data_ptr<int64_t>();
  for (std::vector<int64_t>& of_sample : lengths) {
    for (int64_t i = 0; i < s; ++i) {
      if (i == 0 || ids[i] != ids[i - 1]) of_sample.push_back(0);
      ++of_sample.back();
    }
    ids += s;
  }
  return lengths;
}

nn::Microbatch shard_sequence(const nn::Microbatch& whole, const SequenceSharding& parts) {
  if (parts.ranks == 1) return whole;
  return shard_rows(whole, document_lengths(whole), {{0, whole.tokens.size(1)}}, parts);
}

nn::Microbatch shard_documents(const nn::Microbatch& whole, const std::vector<plan::PositionRun>& pieces,
                               const SequenceSharding& parts) {
  MPX_ASSERT(whole.tokens.size(0) == 1, "documents of ", whole.tokens.size(0), " samples together");
  plan::DocumentLengths lengths(1);
  for (const plan::PositionRun& piece : pieces) lengths[0].push_back(piece.count);
  return shard_rows(whole, lengths, pieces, parts);
}

}  // namespace metroplex::step

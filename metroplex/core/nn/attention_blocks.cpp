#include "nn/attention_blocks.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace metroplex::nn {
namespace {

using RangeList = std::vector<IndexRange>;

struct PositionInterval {
  int64_t first, count, row;
};
std::vector<PositionInterval> split_at_borders(const RangeList& ranges, const std::set<int64_t>& borders) {
  std::vector<PositionInterval> intervals;
  int64_t row = 0;
  for (const IndexRange& range : ranges) {
    const int64_t end = range.first + range.count;
    for (int64_t first = range.first; first < end;) {
      const int64_t next = std::min(end, *borders.upper_bound(first));
      intervals.push_back({first, next - first, row});
      row += next - first;
      first = next;
    }
  }
  return intervals;
}

// Consecutive query rows that see the first `seen` keys and, if causal, a square causal block of keys after those.
struct QueryGroup {
  IndexRange queries;
  int64_t seen = 0;
  bool causal = false;
};
bool can_extend(const QueryGroup& group, int64_t seen, bool causal) {
  return group.causal == causal && seen == group.seen + (causal ? group.queries.count : 0);
}

using IntervalList = std::vector<PositionInterval>;
std::vector<AttentionBlock> build_full_blocks(const IntervalList& queries, const IntervalList& key_intervals,
                                              int64_t num_keys) {
  std::vector<QueryGroup> groups;
  auto key = key_intervals.begin();
  for (const PositionInterval& query : queries) {
    while (key != key_intervals.end() && key->first < query.first) ++key;
    const int64_t seen = key != key_intervals.end() ? key->row : num_keys;
    const bool causal = key != key_intervals.end() && key->first == query.first;
    if (groups.empty() || !can_extend(groups.back(), seen, causal)) groups.push_back({{query.row, 0}, seen, causal});
    groups.back().queries.count += query.count;
  }
  std::vector<AttentionBlock> blocks;
  for (const QueryGroup& group : groups) {
    if (group.seen > 0) blocks.push_back({group.queries, {0, group.seen}, false});
    if (group.causal) blocks.push_back({group.queries, {group.seen, group.queries.count}, true});
  }
  return blocks;
}

// Adds blocks for queries and earlier keys within the window; omits queries that see no key and keys that no query
// sees. If there are more queries than keys, the first queries see all keys and form a separate block.
void add_window_blocks(std::vector<AttentionBlock>& blocks, const PositionInterval& query,
                       const PositionInterval& key, int64_t window) {
  const int64_t keys_end = key.first + key.count, count = std::min(query.count, keys_end + window - query.first),
                unseen = std::max<int64_t>(0, query.first - window - key.first);
  const IndexRange keys{key.row + unseen, key.count - unseen};
  const bool all = query.first + count - 1 - window <= key.first + unseen;
  const int64_t see_all = all ? count : std::max<int64_t>(0, count - keys.count);
  if (see_all > 0) blocks.push_back({{query.row, see_all}, keys, false});
  if (!all) {
    const int64_t distance = query.first + count - keys_end;
    blocks.push_back({{query.row + see_all, count - see_all}, keys, false, window - distance});
  }
}

std::vector<AttentionBlock> build_window_blocks(const IntervalList& queries, const IntervalList& keys,
                                                int64_t window) {
  std::vector<AttentionBlock> blocks;
  for (const PositionInterval& query : queries) {
    auto key =
        std::upper_bound(keys.begin(), keys.end(), query.first,
                         [](int64_t first, const PositionInterval& interval) { return first < interval.first; });
    while (key != keys.begin()) {
      --key;
      if (key->first + key->count - 1 + window < query.first) break;
      if (key->first == query.first) {
        const bool all = window >= query.count - 1;
        blocks.push_back({{query.row, query.count}, {key->row, key->count}, true, all ? -1 : window});
      } else {
        add_window_blocks(blocks, query, *key, window);
      }
    }
  }
  return blocks;
}

// The positions of ascending ranges in [begin, end), and the number of rows before them.
struct ChunkRows {
  RangeList ranges;
  int64_t rows_before = 0;
};
ChunkRows select_chunk(const RangeList& ranges, int64_t begin, int64_t end) {
  ChunkRows out;
  for (const IndexRange& range : ranges) {
    const int64_t first = std::max(range.first, begin), count = std::min(range.first + range.count, end) - first;
    out.rows_before += std::clamp<int64_t>(begin - range.first, 0, range.count);
    if (count > 0) out.ranges.push_back({first, count});
  }
  return out;
}

std::vector<AttentionBlock> build_chunk_blocks(const RangeList& queries, const RangeList& keys, int64_t chunk) {
  std::set<int64_t> numbers;
  for (const IndexRange& range : queries) {
    for (int64_t n = range.first / chunk; n * chunk < range.first + range.count; ++n) numbers.insert(n);
  }
  std::vector<AttentionBlock> blocks;
  for (const int64_t n : numbers) {
    const ChunkRows own = select_chunk(queries, n * chunk, (n + 1) * chunk),
                    seen = select_chunk(keys, n * chunk, (n + 1) * chunk);
    for (AttentionBlock block : attention_blocks(own.ranges, seen.ranges)) {
      block.queries.first += own.rows_before;
      block.keys.first += seen.rows_before;
      blocks.push_back(block);
    }
  }
  return blocks;
}

}  // namespace

std::vector<AttentionBlock> attention_blocks(const RangeList& queries, const RangeList& keys, int64_t window,
                                             int64_t chunk) {
  if (chunk > 0) return build_chunk_blocks(queries, keys, chunk);
  std::set<int64_t> borders;
  for (const RangeList* ranges : {&queries, &keys}) {
    for (const IndexRange& range : *ranges) borders.insert({range.first, range.first + range.count});
  }
  const IntervalList query_intervals = split_at_borders(queries, borders),
                     key_intervals = split_at_borders(keys, borders);
  return window < 0 ? build_full_blocks(query_intervals, key_intervals, num_rows(keys))
                    : build_window_blocks(query_intervals, key_intervals, window);
}

RowOrder::RowOrder(const RangeList& positions) {
  std::vector<size_t> order(positions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return positions[a].first < positions[b].first; });
  RangeList input_order;
  int64_t row = 0;
  for (const IndexRange& range : positions) {
    input_order.push_back({row, range.count});
    row += range.count;
  }
  sorted_rows_.resize(positions.size());
  row = 0;
  for (const size_t i : order) {
    const IndexRange& range = positions[i];
    input_rows_.push_back(input_order[i]);
    sorted_rows_[i] = {row, range.count};
    row += range.count;
    if (!positions_.empty() && positions_.back().first + positions_.back().count == range.first)
      positions_.back().count += range.count;
    else positions_.push_back(range);
  }
}

at::Tensor RowOrder::reorder(const at::Tensor& x, int64_t dim, const RangeList& rows) {
  const auto before = [](const IndexRange& a, const IndexRange& b) { return a.first < b.first; };
  if (std::is_sorted(rows.begin(), rows.end(), before)) return x;
  std::vector<at::Tensor> chunks;
  for (const IndexRange& range : rows) chunks.push_back(x.narrow(dim, range.first, range.count));
  return at::cat(chunks, dim);
}

}  // namespace metroplex::nn

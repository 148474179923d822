#include "nn/attention_blocks.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace metroplex::nn {
namespace {

using RunList = std::vector<RowRun>;

struct PositionPiece {
  int64_t first, count, row;
};
std::vector<PositionPiece> pieces_of(const RunList& runs, const std::set<int64_t>& borders) {
  std::vector<PositionPiece> pieces;
  int64_t row = 0;
  for (const RowRun& run : runs) {
    const int64_t end = run.first + run.count;
    for (int64_t first = run.first; first < end;) {
      const int64_t next = std::min(end, *borders.upper_bound(first));
      pieces.push_back({first, next - first, row});
      row += next - first;
      first = next;
    }
  }
  return pieces;
}

// Consecutive query rows that see the first `seen` keys and, if causal, a square causal block of keys after those.
struct QueryGroup {
  RowRun queries;
  int64_t seen = 0;
  bool causal = false;
};
bool goes_on(const QueryGroup& group, int64_t seen, bool causal) {
  return group.causal == causal && seen == group.seen + (causal ? group.queries.count : 0);
}

using PieceList = std::vector<PositionPiece>;
std::vector<AttentionBlock> blocks_of_all(const PieceList& queries, const PieceList& of_keys, int64_t num_keys) {
  std::vector<QueryGroup> groups;
  auto key = of_keys.begin();
  for (const PositionPiece& query : queries) {
    while (key != of_keys.end() && key->first < query.first) ++key;
    const int64_t seen = key != of_keys.end() ? key->row : num_keys;
    const bool causal = key != of_keys.end() && key->first == query.first;
    if (groups.empty() || !goes_on(groups.back(), seen, causal)) groups.push_back({{query.row, 0}, seen, causal});
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
void add_in_window(std::vector<AttentionBlock>& blocks, const PositionPiece& query, const PositionPiece& key,
                   int64_t window) {
  const int64_t keys_end = key.first + key.count, count = std::min(query.count, keys_end + window - query.first),
                unseen = std::max<int64_t>(0, query.first - window - key.first);
  const RowRun keys{key.row + unseen, key.count - unseen};
  const bool all = query.first + count - 1 - window <= key.first + unseen;
  const int64_t see_all = all ? count : std::max<int64_t>(0, count - keys.count);
  if (see_all > 0) blocks.push_back({{query.row, see_all}, keys, false});
  if (!all) {
    const int64_t behind = query.first + count - keys_end;
    blocks.push_back({{query.row + see_all, count - see_all}, keys, false, window - behind});
  }
}

std::vector<AttentionBlock> blocks_in_window(const PieceList& queries, const PieceList& keys, int64_t window) {
  std::vector<AttentionBlock> blocks;
  for (const PositionPiece& query : queries) {
    auto key = std::upper_bound(keys.begin(), keys.end(), query.first,
                                [](int64_t first, const PositionPiece& piece) { return first < piece.first; });
    while (key != keys.begin()) {
      --key;
      if (key->first + key->count - 1 + window < query.first) break;
      if (key->first == query.first) {
        const bool all = window >= query.count - 1;
        blocks.push_back({{query.row, query.count}, {key->row, key->count}, true, all ? -1 : window});
      } else {
        add_in_window(blocks, query, *key, window);
      }
    }
  }
  return blocks;
}

}  // namespace

std::vector<AttentionBlock> attention_blocks(const RunList& queries, const RunList& keys, int64_t window) {
  std::set<int64_t> borders;
  for (const RunList* runs : {&queries, &keys}) {
    for (const RowRun& run : *runs) borders.insert({run.first, run.first + run.count});
  }
  const PieceList of_queries = pieces_of(queries, borders), of_keys = pieces_of(keys, borders);
  return window < 0 ? blocks_of_all(of_queries, of_keys, num_rows(keys))
                    : blocks_in_window(of_queries, of_keys, window);
}

RowOrder::RowOrder(const RunList& positions) {
  std::vector<size_t> order(positions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return positions[a].first < positions[b].first; });
  RunList as_given;
  int64_t row = 0;
  for (const RowRun& run : positions) {
    as_given.push_back({row, run.count});
    row += run.count;
  }
  ordered_.resize(positions.size());
  row = 0;
  for (const size_t i : order) {
    const RowRun& run = positions[i];
    given_.push_back(as_given[i]);
    ordered_[i] = {row, run.count};
    row += run.count;
    if (!positions_.empty() && positions_.back().first + positions_.back().count == run.first)
      positions_.back().count += run.count;
    else positions_.push_back(run);
  }
}

at::Tensor RowOrder::moved(const at::Tensor& x, int64_t dim, const RunList& rows) {
  const auto before = [](const RowRun& a, const RowRun& b) { return a.first < b.first; };
  if (std::is_sorted(rows.begin(), rows.end(), before)) return x;
  std::vector<at::Tensor> parts;
  for (const RowRun& run : rows) parts.push_back(x.narrow(dim, run.first, run.count));
  return at::cat(parts, dim);
}

}  // namespace metroplex::nn

#include "nn/block_documents.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace metroplex::nn {
namespace {

// Like at::searchsorted, but also works on the meta device, where libtorch has no implementation.
at::Tensor search_sorted(const at::Tensor& sorted, const at::Tensor& values, bool right = false) {
  if (sorted.is_meta()) return at::empty(values.sizes(), values.options());
  return at::searchsorted(sorted, values, /*out_int32=*/false, right);
}

// Returns the first row of each sample, [b], counted over all samples.
at::Tensor first_rows(const Microbatch& batch) {
  const int64_t samples = batch.documents.ids.size(0), whole = batch.documents.ids.size(1);
  return at::arange(0, samples * whole, whole, batch.documents.offsets.options());
}

// Returns the offsets, [capacity + 1] int32, of at most `capacity` documents that have rows at `positions`.
// Offsets count these rows over all samples; the last offset is the end.
at::Tensor compact_offsets(const Microbatch& batch, const at::Tensor& positions, int64_t capacity) {
  const at::Tensor& offsets = batch.documents.offsets;
  const at::Tensor all = (first_rows(batch).unsqueeze(1) + positions).flatten();
  const at::Tensor begins = search_sorted(all, offsets);
  if (capacity + 1 >= offsets.numel()) return begins.to(at::kInt);
  const at::Tensor with_rows = begins.diff().ne(0).cumsum(0);  // documents with rows, up to each one
  const at::Tensor numbers = at::arange(1, capacity + 2, offsets.options());
  return select_rows(begins, 0, search_sorted(with_rows, numbers)).to(at::kInt);
}

// Converts `begins` [b, n], relative to samples of `rows` rows, to offsets [b n + 1] int32.
at::Tensor sample_offsets(const at::Tensor& begins, int64_t rows) {
  const int64_t samples = begins.size(0);
  const at::Tensor first = at::arange(0, samples * rows, rows, begins.options());
  return at::constant_pad_nd((begins + first.unsqueeze(1)).flatten(), {0, 1}, samples * rows).to(at::kInt);
}

// All keys of a non-causal block precede its queries.
BlockDocuments build_non_causal(const Microbatch& batch, const at::Tensor& queries, const at::Tensor& keys,
                                bool window) {
  const at::Tensor& offsets = batch.documents.offsets;
  const at::Tensor first = first_rows(batch);
  const at::Tensor next_document = search_sorted(offsets, first + queries.narrow(0, 0, 1), /*right=*/true);
  const at::Tensor begin = select_rows(offsets, 0, next_document - 1) - first,
                   end = select_rows(offsets, 0, next_document) - first;
  const at::Tensor keys_before = search_sorted(keys, begin), queries_inside = search_sorted(queries, end);
  const at::Tensor none = at::zeros_like(keys_before), all_keys = at::full_like(none, keys.numel());
  const auto to_offsets = [](const std::vector<at::Tensor>& begins, const at::Tensor& rows) {
    return sample_offsets(at::stack(begins, 1), rows.numel());
  };
  if (!window)
    return {{to_offsets({none, none, queries_inside}, queries), to_offsets({none, keys_before, all_keys}, keys)}, {}};
  const at::Tensor number = at::arange(queries.numel(), queries.options());
  return {{to_offsets({none, none}, queries), to_offsets({none, keys_before}, keys)},
          number.ge(queries_inside.unsqueeze(1)).unsqueeze(1)};
}

int64_t count_documents(const Microbatch& batch, const std::vector<IndexRange>& positions) {
  const int64_t whole = batch.documents.ids.size(1);
  return std::count_if(batch.documents.ranges.begin(), batch.documents.ranges.end(), [&](const IndexRange& document) {
    const int64_t first = document.first % whole;
    return std::any_of(positions.begin(), positions.end(), [&](const IndexRange& range) {
      return first < range.first + range.count && range.first < first + document.count;
    });
  });
}

std::optional<int64_t> find_capacity(const Microbatch& batch, const std::vector<IndexRange>& positions) {
  const int64_t capacity = document_capacity(batch, positions);
  if (batch.documents.offsets.is_meta()) return capacity;
  if (batch.documents.ranges.empty()) return batch.documents.offsets.numel() - 1;
  return count_documents(batch, positions) <= capacity ? std::optional(capacity) : std::nullopt;
}

}  // namespace

int64_t document_capacity(const Microbatch& batch, const std::vector<IndexRange>& positions) {
  const int64_t samples = batch.documents.ids.size(0), whole = batch.documents.ids.size(1),
                all = batch.documents.offsets.numel() - 1;
  const int64_t each = std::clamp<int64_t>(whole * samples / all, 1, config::kRowsOfADocument);
  int64_t capacity = 0;
  for (const IndexRange& range : positions) capacity += (range.count + each - 1) / each + 1;
  return std::min(all, samples * capacity);
}

std::optional<BlockDocuments> block_documents(const Microbatch& batch, const AttentionBlock& block,
                                              const CorePositions& ordered) {
  const at::Tensor queries = ordered.queries.rows.narrow(0, block.queries.first, block.queries.count);
  if (!block.causal) {
    const at::Tensor keys = ordered.keys.rows.narrow(0, block.keys.first, block.keys.count);
    return build_non_causal(batch, queries, keys, block.window >= 0);
  }
  const std::optional<int64_t> capacity =
      find_capacity(batch, narrow_ranges(ordered.queries.ranges, block.queries.first, block.queries.count));
  if (!capacity) return std::nullopt;
  const at::Tensor both = compact_offsets(batch, queries, *capacity);
  return BlockDocuments{{both, both}, {}};
}

}  // namespace metroplex::nn

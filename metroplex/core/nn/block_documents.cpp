#include "nn/block_documents.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace metroplex::nn {
namespace {

// at::searchsorted, also on the meta device, where libtorch does not implement it.
at::Tensor places_in(const at::Tensor& sorted, const at::Tensor& values, bool behind_equal = false) {
  if (sorted.is_meta()) return at::empty(values.sizes(), values.options());
  return at::searchsorted(sorted, values, /*out_int32=*/false, behind_equal);
}

// Returns the number of each whole sample's first row, [b].
at::Tensor first_rows(const Microbatch& batch) {
  const int64_t samples = batch.document_ids.size(0), whole = batch.document_ids.size(1);
  return at::arange(0, samples * whole, whole, batch.document_offsets.options());
}

// Returns the offsets of at most `room` documents that have rows at `positions`, `[room + 1]` int32. Offsets count
// these rows over all samples; the last one is the end.
at::Tensor documents_within(const Microbatch& batch, const at::Tensor& positions, int64_t room) {
  const at::Tensor& offsets = batch.document_offsets;
  const at::Tensor all = (first_rows(batch).unsqueeze(1) + positions).flatten();
  const at::Tensor begins = places_in(all, offsets);
  if (room + 1 >= offsets.numel()) return begins.to(at::kInt);
  const at::Tensor with_rows = begins.diff().ne(0).cumsum(0);  // documents with rows, up to each
  const at::Tensor numbers = at::arange(1, room + 2, offsets.options());
  return select_rows(begins, 0, places_in(with_rows, numbers)).to(at::kInt);
}

// Converts `begins` [b, n], relative to samples of `rows` rows, to offsets [b n + 1] int32.
at::Tensor offsets_of_samples(const at::Tensor& begins, int64_t rows) {
  const int64_t samples = begins.size(0);
  const at::Tensor first = at::arange(0, samples * rows, rows, begins.options());
  return at::constant_pad_nd((begins + first.unsqueeze(1)).flatten(), {0, 1}, samples * rows).to(at::kInt);
}

// For keys that precede the queries.
BlockDocuments document_across(const Microbatch& batch, const at::Tensor& queries, const at::Tensor& keys,
                               bool window) {
  const at::Tensor& offsets = batch.document_offsets;
  const at::Tensor first = first_rows(batch);
  const at::Tensor behind = places_in(offsets, first + queries.narrow(0, 0, 1), /*behind_equal=*/true);
  const at::Tensor begin = select_rows(offsets, 0, behind - 1) - first, end = select_rows(offsets, 0, behind) - first;
  const at::Tensor keys_before = places_in(keys, begin), queries_inside = places_in(queries, end);
  const at::Tensor none = at::zeros_like(keys_before), all_keys = at::full_like(none, keys.numel());
  const auto offsets_of = [](const std::vector<at::Tensor>& begins, const at::Tensor& rows) {
    return offsets_of_samples(at::stack(begins, 1), rows.numel());
  };
  if (!window)
    return {{offsets_of({none, none, queries_inside}, queries), offsets_of({none, keys_before, all_keys}, keys)}, {}};
  const at::Tensor number = at::arange(queries.numel(), queries.options());
  return {{offsets_of({none, none}, queries), offsets_of({none, keys_before}, keys)},
          number.ge(queries_inside.unsqueeze(1)).unsqueeze(1)};
}

int64_t documents_at(const Microbatch& batch, const std::vector<RowRun>& positions) {
  const int64_t whole = batch.document_ids.size(1);
  return std::count_if(batch.document_runs.begin(), batch.document_runs.end(), [&](const RowRun& document) {
    const int64_t first = document.first % whole;
    return std::any_of(positions.begin(), positions.end(), [&](const RowRun& run) {
      return first < run.first + run.count && run.first < first + document.count;
    });
  });
}

std::optional<int64_t> room_within(const Microbatch& batch, const std::vector<RowRun>& positions) {
  const int64_t room = document_room(batch, positions);
  if (batch.document_offsets.is_meta()) return room;
  if (batch.document_runs.empty()) return batch.document_offsets.numel() - 1;
  return documents_at(batch, positions) <= room ? std::optional(room) : std::nullopt;
}

}  // namespace

int64_t document_room(const Microbatch& batch, const std::vector<RowRun>& positions) {
  const int64_t samples = batch.document_ids.size(0), whole = batch.document_ids.size(1),
                all = batch.document_offsets.numel() - 1;
  const int64_t each = std::clamp<int64_t>(whole * samples / all, 1, config::kRowsOfADocument);
  int64_t room = 0;
  for (const RowRun& run : positions) room += (run.count + each - 1) / each + 1;
  return std::min(all, samples * room);
}

std::optional<BlockDocuments> block_documents(const Microbatch& batch, const AttentionBlock& block,
                                              const CorePositions& ordered) {
  const at::Tensor queries = ordered.queries.rows.narrow(0, block.queries.first, block.queries.count);
  if (!block.causal) {
    const at::Tensor keys = ordered.keys.rows.narrow(0, block.keys.first, block.keys.count);
    return document_across(batch, queries, keys, block.window >= 0);
  }
  const std::optional<int64_t> room =
      room_within(batch, cut_runs(ordered.queries.runs, block.queries.first, block.queries.count));
  if (!room) return std::nullopt;
  const at::Tensor both = documents_within(batch, queries, *room);
  return BlockDocuments{{both, both}, {}};
}

}  // namespace metroplex::nn

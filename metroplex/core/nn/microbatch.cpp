#include "nn/microbatch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "base/error.h"
#include "nn/kv_cache.h"
#include "nn/random_site.h"

namespace metroplex::nn {

int64_t num_rows(const std::vector<IndexRange>& ranges) {
  int64_t count = 0;
  for (const IndexRange& range : ranges) count += range.count;
  return count;
}

std::vector<IndexRange> narrow_ranges(const std::vector<IndexRange>& ranges, int64_t first, int64_t count) {
  std::vector<IndexRange> narrowed;
  int64_t before = 0;
  for (const IndexRange& range : ranges) {
    const int64_t begin = std::max(first, before), end = std::min(first + count, before + range.count);
    if (begin < end) narrowed.push_back({range.first + begin - before, end - begin});
    before += range.count;
  }
  return narrowed;
}

Positions sequence_positions(const Microbatch& batch) {
  if (!batch.sequence.rows.defined()) return {batch.cache != nullptr ? batch.cache->length : 0, {}, 0};
  MPX_ASSERT(batch.cache == nullptr, "generation continues one run of rows");
  int64_t count = 0;
  for (const IndexRange& range : batch.sequence.row_ranges) {
    count += range.count;
    MPX_ASSERT(range.first >= 0 && range.first + range.count <= batch.sequence.length, "rows ", range.first, " to ",
               range.first + range.count, " of a sequence of ", batch.sequence.length);
  }
  MPX_ASSERT(
      batch.sequence.rows.is_contiguous() && batch.sequence.rows.numel() == count && count == batch.tokens.size(1),
      "the rows of a microbatch: ", batch.sequence.rows.numel(), " numbers, runs of ", count, ", ",
      batch.tokens.size(1), " tokens");
  return {0, batch.sequence.rows, batch.sequence.length, batch.sequence.row_ranges};
}

Microbatch empty_microbatch(const MicrobatchSpec& form) {
  const int64_t b = form.samples, s = form.seq_length;
  const at::TensorOptions integers = at::TensorOptions().dtype(at::kLong).device(form.device);
  Microbatch batch;
  batch.tokens = at::empty({b, s}, integers);
  batch.labels = at::empty({b, s}, integers);
  batch.loss_mask = at::empty({b, s}, integers.dtype(form.float_type));
  batch.position_ids = at::empty({b, s}, integers);
  if (form.documents) batch.documents.ids = at::empty({b, s}, integers);
  if (form.documents && form.max_documents > 0)
    batch.documents.offsets = at::empty({b * form.max_documents + 1}, integers);
  view_counters(batch, at::empty({b + 1}, integers));
  return batch;
}

at::Tensor document_offsets(const at::Tensor& document_ids, int64_t most) {
  const int64_t b = document_ids.size(0), s = document_ids.size(1);
  const at::Tensor ids = document_ids.contiguous(), offsets = at::full({b * most + 1}, b * s, at::kLong);
  const auto* of = ids.const_data_ptr<int64_t>();
  auto *next = offsets.mutable_data_ptr<int64_t>(), *end = next + b * most;
  for (int64_t i = 0; i < b * s; ++i) {
    if (i % s != 0 && of[i] == of[i - 1]) continue;
    if (next == end) return {};
    *next++ = i;
  }
  return offsets;
}

void view_counters(Microbatch& batch, const at::Tensor& both) {
  const int64_t b = both.numel() - 1;
  batch.counters.samples = both.narrow(0, 0, b);
  batch.counters.step = both.narrow(0, b, 1);
}

void set_counters(Microbatch& batch, int64_t step, const at::Tensor& numbers) {
  const int64_t b = numbers.numel();
  const at::Tensor both = at::empty({b + 1}, at::kLong);
  both.narrow(0, 0, b).copy_(make_sample_counters(step, numbers));
  both.mutable_data_ptr<int64_t>()[b] = step;
  view_counters(batch, both);
}

at::Tensor make_sample_counters(int64_t step, const at::Tensor& numbers) {
  const at::Tensor all = numbers.contiguous();
  at::Tensor counters = at::empty(all.sizes(), at::kLong);
  const int64_t* from = all.const_data_ptr<int64_t>();
  int64_t* to = counters.mutable_data_ptr<int64_t>();
  const uint64_t spread = mix(static_cast<uint64_t>(step));
  for (int64_t i = 0; i < all.numel(); ++i) to[i] = static_cast<int64_t>(spread + static_cast<uint64_t>(from[i]));
  return counters;
}

at::Tensor row_documents(const Microbatch& batch, int64_t s) {
  const at::Tensor& ids = batch.documents.ids;
  return ids.defined() ? ids.narrow(1, ids.size(1) - s, s) : ids;
}

at::Tensor select_rows(const at::Tensor& x, int64_t dim, const at::Tensor& rows) {
  if (!x.is_meta()) return x.index_select(dim, rows);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(dim)] = rows.numel();
  return at::empty(sizes, x.options());
}

}  // namespace metroplex::nn

#include "nn/attention_mask.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"
#include "nn/fused_attention.h"

namespace metroplex::nn {

static kernels::AttentionRows to_kernel_rows(const Positions& rows) {
  return {rows.first, rows.rows.defined() ? static_cast<const int64_t*>(rows.rows.const_data_ptr()) : nullptr};
}

AttentionMask attention_mask(const CoreInputs& in, const CoreCall& call) {
  const CoreSpec& spec = call.spec;
  const Positions &of_queries = call.positions.queries, &of_keys = call.positions.keys;
  const at::Tensor& documents = call.batch.documents.ids;
  const int64_t queries = in.q.size(0), b = in.q.size(1), heads = in.q.size(2), keys = in.k.size(0);
  const bool chosen = of_keys.rows.defined();
  AttentionMask mask;
  kernels::AttentionShape& shape = mask.shape;
  shape.samples = b, shape.heads = heads, shape.groups = in.k.size(2);
  shape.queries = queries, shape.keys = keys;
  shape.head_dim = in.q.size(3), shape.v_head_dim = in.v.size(3), shape.softmax_scale = spec.softmax_scale;
  if (spec.window >= 0) shape.reach = spec.window;
  shape.chunk = spec.chunk;
  shape.softcap = spec.softcap;
  shape.query_rows = to_kernel_rows(of_queries);
  shape.key_rows = to_kernel_rows(of_keys);
  if (documents.defined()) {
    MPX_ASSERT(documents.scalar_type() == at::kLong, "document_ids are int64");
    mask.documents = documents.contiguous();
    const int64_t whole = chosen ? of_keys.whole : of_keys.first + keys;
    MPX_CHECK(mask.documents.size(1) == whole, "nn", "document_ids cover ", mask.documents.size(1),
              " positions, the attention sees ", whole);
    shape.documents = static_cast<const int64_t*>(mask.documents.const_data_ptr());
    shape.document_stride = whole;
  }
  mask.dropout = probability_mask({b, heads, queries, chosen ? of_keys.whole : keys}, spec.dropout,
                                  {spec.first_head, of_queries}, call.batch);
  shape.dropout = mask.dropout.shape;
  return mask;
}

bool is_plain_causal(const CoreInputs& in, const CorePositions& at) {
  return !at.queries.rows.defined() && !at.keys.rows.defined() && at.queries.first == at.keys.first &&
         in.q.size(0) == in.k.size(0);
}

// Visible pairs of `rows` consecutive positions, which start at a multiple of a chunk.
static double visible_pairs(double rows, const CoreCall& call) {
  const auto chunk = static_cast<double>(call.spec.chunk);
  if (chunk == 0) return causal_pairs(rows, call.spec.window);
  const double chunks = std::floor(rows / chunk);
  return chunks * causal_pairs(chunk, -1) + causal_pairs(rows - chunks * chunk, -1);
}

double attention_flops(const CoreInputs& in, const CoreCall& call, int64_t num_qk, int64_t num_v) {
  const CorePositions& positions = call.positions;
  const auto queries = static_cast<double>(in.q.size(0)), keys = static_cast<double>(in.k.size(0));
  // Queries of a zigzag shard see half of the keys of any zigzag shard, including their own.
  const bool half = positions.queries.rows.defined() && positions.keys.rows.defined();
  const double pairs =
      is_plain_causal(in, positions) ? visible_pairs(queries, call) : queries * keys * (half ? 0.5 : 1);
  return 2 * static_cast<double>(in.q.size(1) * in.q.size(2) * (num_qk * in.q.size(3) + num_v * in.v.size(3))) *
         pairs;
}

}  // namespace metroplex::nn

#include "moe/noise.h"

#include <ATen/ops/empty.h>

#include "base/error.h"

namespace metroplex::moe {

// hidden_mask() sets counters only for an active dropout, so any positive probability works.
RowNoise::RowNoise(int64_t layer, nn::RandomSite site, const nn::LayerContext& context)
    : key_{context.seed, layer, site, 0.5, context.target}, sp_(context.sp) {}

nn::DropoutMask RowNoise::rows(const at::Tensor& x_sbh, const nn::Microbatch& batch) const {
  MPX_ASSERT(key_.active(batch), "routers sample noise in training only");
  return nn::hidden_mask(x_sbh, {key_, nullptr, nn::sequence_offset(x_sbh, sp_)}, batch);
}

at::Tensor RowNoise::draw(Noise noise, const nn::DropoutMask& rows, at::ScalarType type) const {
  const kernels::DropoutShape& shape = rows.shape;
  const at::Tensor out = at::empty({shape.num_rows, shape.width}, rows.counters.options().dtype(type));
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    device::launch(
        key_.target,
        {"random_rows",
         {&rows.counters, &rows.rows},
         {&out},
         {{"noise", static_cast<int64_t>(noise)}, {"key", shape.key}, {"first_row", shape.rows.first_row}}},
        kernels::random_rows<T>, kernels::random_rows_cuda<T>, nn::elements<T>(out), noise, shape);
  };
  type == at::kDouble ? run(double{}) : run(float{});
  return out;
}

}  // namespace metroplex::moe

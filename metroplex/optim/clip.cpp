#include "optim/clip.h"

#include <ATen/ops/zeros.h>

#include <cmath>

#include "comm/collectives.h"
#include "cuda/kernels/optimizer_sums.h"
#include "optim/stored.h"

namespace metroplex::optim {
namespace {

cuda::kernels::GradientSums sums_of(const at::Tensor& x) {
  return cuda::kernels::gradient_sums(x.const_data_ptr(), number_of(x.scalar_type()), x.numel());
}

void reduce(const at::Tensor& sums, const ModelRanks& ranks) {
  comm::all_reduce(sums, ranks.model_parallel);
  comm::all_reduce(sums, ranks.shard);
}

}  // namespace

GradientStats gradient_stats(const std::vector<Slice>& slices, const ModelRanks& ranks) {
  at::Tensor sums = at::zeros({3}, at::kDouble);
  double* values = sums.mutable_data_ptr<double>();
  for (const Slice& slice : slices) {
    const auto of_slice = sums_of(slice.gradient);
    values[2] += static_cast<double>(of_slice.num_nonfinite);
    if (!slice.param->counts(ranks.tp.first())) continue;
    values[0] += of_slice.sum_of_squares;
    values[1] += static_cast<double>(of_slice.num_zeros - slice.padding());
  }
  reduce(sums, ranks);
  return {std::sqrt(values[0]), static_cast<int64_t>(values[1]), static_cast<int64_t>(values[2])};
}

double params_norm(const std::vector<Slice>& slices, const ModelRanks& ranks) {
  at::Tensor sum = at::zeros({1}, at::kDouble);
  double* value = sum.mutable_data_ptr<double>();
  for (const Slice& slice : slices) {
    if (slice.param->counts(ranks.tp.first())) *value += sums_of(slice.values).sum_of_squares;
  }
  reduce(sum, ranks);
  return std::sqrt(*value);
}

double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1.0 ? coefficient : 1.0;
}

const Slice* first_nonfinite(const std::vector<Slice>& slices) {
  for (const Slice& slice : slices) {
    if (sums_of(slice.gradient).num_nonfinite > 0) return &slice;
  }
  return nullptr;
}

}  // namespace metroplex::optim

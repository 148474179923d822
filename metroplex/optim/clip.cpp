#include "optim/clip.h"

#include <ATen/ops/zeros.h>

#include "comm/collectives.h"
#include "optim/sums.h"

namespace metroplex::optim {
namespace {

int64_t padding_elements(const nn::Param& param) {
  if (!param.sharded()) return 0;
  int64_t rows = 0;
  for (const nn::RowRange& range : param.shard.ranges) rows += range.size;
  const int64_t local_rows = param.data.size(param.shard.dim);
  return local_rows == 0 ? 0 : (local_rows - rows) * (param.data.numel() / local_rows);
}

}  // namespace

GradientStats gradient_stats(const std::vector<nn::Param*>& params, const comm::Group& tp,
                             const comm::Group& model_parallel, bool with_zeros) {
  at::Tensor sums = at::zeros({2}, at::kDouble);
  double* values = sums.mutable_data_ptr<double>();
  for (const nn::Param* param : params) {
    if (!param->counts(tp.first())) continue;
    values[0] += sum_of_squares(param->main_grad);
    if (with_zeros) values[1] += static_cast<double>(count_zeros(param->main_grad) - padding_elements(*param));
  }
  comm::all_reduce(sums, model_parallel);
  return {std::sqrt(values[0]), with_zeros ? static_cast<int64_t>(values[1]) : -1};
}

double params_norm(const std::vector<nn::Param*>& params, const comm::Group& tp, const comm::Group& model_parallel) {
  at::Tensor sum = at::zeros({1}, at::kDouble);
  double* value = sum.mutable_data_ptr<double>();
  for (const nn::Param* param : params) {
    if (param->counts(tp.first())) *value += sum_of_squares(param->data);
  }
  comm::all_reduce(sum, model_parallel);
  return std::sqrt(*value);
}

double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1.0 ? coefficient : 1.0;
}

}  // namespace metroplex::optim

#include "optim/clip.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "comm/collectives.h"
#include "cuda/device.h"
#include "cuda/kernels/optimizer_sums.h"
#include "optim/stored.h"

namespace metroplex::optim {
namespace {

namespace kernels = cuda::kernels;

// Sums over several tensors, taken where they lie.
class Sums {
 public:
  explicit Sums(at::Device device) {
    if (!device.is_cpu()) on_gpu_ = at::zeros({kNumbers}, at::TensorOptions().dtype(at::kLong).device(device));
  }

  void add(const at::Tensor& x) {
    const kernels::Number number = number_of(x.scalar_type());
    if (!on_gpu_.defined()) {
      const kernels::GradientSums of_x = kernels::gradient_sums(x.const_data_ptr(), number, x.numel());
      on_host_.sum_of_squares += of_x.sum_of_squares;
      on_host_.num_nonfinite += of_x.num_nonfinite;
      on_host_.num_zeros += of_x.num_zeros;
      return;
    }
    const at::Tensor room = at::empty({kNumbers * kernels::gradient_sums_blocks(x.numel())}, on_gpu_.options());
    kernels::gradient_sums_cuda(x.const_data_ptr(), number, x.numel(), {place(on_gpu_), place(room)},
                                cuda::current_stream());
  }

  // [3] double on the device: sum of squares, number not finite, number of zeros.
  at::Tensor numbers() const {
    if (on_gpu_.defined())
      return at::cat({on_gpu_.narrow(0, 0, 1).view(at::kDouble), on_gpu_.narrow(0, 1, 2).to(at::kDouble)});
    return at::tensor({on_host_.sum_of_squares, static_cast<double>(on_host_.num_nonfinite),
                       static_cast<double>(on_host_.num_zeros)},
                      at::kDouble);
  }

 private:
  static constexpr int64_t kNumbers = sizeof(kernels::GradientSums) / sizeof(int64_t);
  static kernels::GradientSums* place(const at::Tensor& x) {
    return static_cast<kernels::GradientSums*>(x.mutable_data_ptr());
  }

  kernels::GradientSums on_host_;
  at::Tensor on_gpu_;  // a GradientSums
};

at::Tensor reduced(const at::Tensor& numbers, const ModelRanks& ranks) {
  comm::all_reduce(numbers, ranks.model_parallel);
  comm::all_reduce(numbers, ranks.shard);
  return numbers.cpu();
}

}  // namespace

GradientStats gradient_stats(const std::vector<Slice>& slices, const ModelRanks& ranks) {
  Sums counted(ranks.device), others(ranks.device);
  int64_t padding = 0;
  for (const Slice& slice : slices) {
    const bool counts = slice.param->counts(ranks.at);
    (counts ? counted : others).add(slice.gradient);
    if (counts) padding += slice.padding();
  }
  const at::Tensor numbers = counted.numbers();
  numbers.narrow(0, 1, 1).add_(others.numbers().narrow(0, 1, 1));
  numbers.narrow(0, 2, 1).sub_(padding);
  const at::Tensor host = reduced(numbers, ranks);
  const double* values = host.const_data_ptr<double>();
  return {std::sqrt(values[0]), static_cast<int64_t>(values[2]), static_cast<int64_t>(values[1])};
}

double params_norm(const std::vector<Slice>& slices, const ModelRanks& ranks) {
  Sums sums(ranks.device);
  for (const Slice& slice : slices) {
    if (slice.param->counts(ranks.at)) sums.add(slice.values);
  }
  return std::sqrt(reduced(sums.numbers(), ranks).const_data_ptr<double>()[0]);
}

double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1.0 ? coefficient : 1.0;
}

const Slice* first_nonfinite(const std::vector<Slice>& slices) {
  for (const Slice& slice : slices) {
    Sums sums(slice.gradient.device());
    sums.add(slice.gradient);
    if (sums.numbers()[1].item<double>() > 0) return &slice;
  }
  return nullptr;
}

}  // namespace metroplex::optim

#include "optim/clip.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "comm/collectives.h"
#include "device/launch_point.h"
#include "kernels/optimizer_step.h"
#include "optim/stored.h"

namespace metroplex::optim {
namespace {

// Accumulates sums over several tensors on their device.
class Sums {
 public:
  explicit Sums(const device::Target& target)
      : target_(target), sums_(at::zeros({kNumbers}, at::TensorOptions().dtype(at::kLong).device(target.memory()))) {}

  // For excluded elements, only non-finite values are counted.
  struct Summand {
    at::Tensor x;
    bool counts = true;
    at::Tensor sums = {};  // of x, which is then not read
  };
  void add(const std::vector<Summand>& all) {
    if (all.empty()) return;
    std::vector<kernels::GradientRange> ranges;
    std::vector<const at::Tensor*> reads{&sums_};
    int64_t blocks = 0;
    for (const auto& [x, counts, sums] : all) {
      const at::Tensor& read = sums.defined() ? sums : x;
      ranges.push_back({read.const_data_ptr(), to_number(x.scalar_type()), x.numel(), counts, sums.defined()});
      reads.push_back(&read);
      blocks += kernels::gradient_sums_blocks(x.numel());
    }
    const at::Tensor workspace = target_.gpu() ? at::empty({kNumbers * blocks}, sums_.options()) : at::Tensor();
    device::launch(target_, {"gradient_sums", reads, {&sums_}, {}, 0, {&workspace}}, kernels::add_gradient_sums,
                   kernels::gradient_sums_cuda, ranges,
                   kernels::GradientSumsPlace{data_pointer(sums_), data_pointer(workspace)});
  }

  // [3] double on the device: sum of squares, number of non-finite elements, number of zeros.
  at::Tensor numbers() const {
    if (!target_.gpu()) {
      const at::Tensor out = at::empty({3}, sums_.options().dtype(at::kDouble));
      device::launch(target_, {"gradient_numbers", {&sums_}, {&out}}, write_numbers, device::CpuOnly(),
                     data_pointer(sums_), static_cast<double*>(out.mutable_data_ptr()));
      return out;
    }
    return at::cat({sums_.narrow(0, 0, 1).view(at::kDouble), sums_.narrow(0, 1, 2).to(at::kDouble)});
  }

 private:
  static constexpr int64_t kNumbers = sizeof(kernels::GradientSums) / sizeof(int64_t);
  static kernels::GradientSums* data_pointer(const at::Tensor& x) {
    return x.defined() ? static_cast<kernels::GradientSums*>(x.mutable_data_ptr()) : nullptr;
  }
  static void write_numbers(const kernels::GradientSums* sums, double* out) {
    out[0] = sums->sum_of_squares;
    out[1] = static_cast<double>(sums->num_nonfinite);
    out[2] = static_cast<double>(sums->num_zeros);
  }

  device::Target target_;
  at::Tensor sums_;  // a GradientSums
};

// Returns [3]: the sums of all families, each reduced over its ranks.
at::Tensor reduce_families(const std::vector<NormFamily>& families,
                           at::Tensor (*sum_family)(const NormFamily& family)) {
  at::Tensor sum;
  for (const NormFamily& family : families) {
    const at::Tensor numbers = sum_family(family);
    comm::all_reduce(numbers, family.ranks.model_parallel);
    comm::all_reduce(numbers, family.ranks.shard);
    sum = sum.defined() ? sum.add_(numbers) : numbers;
  }
  MPX_ASSERT(sum.defined(), "the gradient norm needs at least one family of parameters");
  return sum;
}

at::Tensor sum_gradients(const NormFamily& family) {
  std::vector<Sums::Summand> gradients;
  int64_t padding = 0;
  for (size_t i = 0; i < family.slices.size(); ++i) {
    const Shard& slice = family.slices[i];
    gradients.push_back(
        {slice.gradient, slice.param->counts(family.ranks.at), family.sums.empty() ? at::Tensor() : family.sums[i]});
    if (gradients.back().counts) padding += slice.padding();
  }
  Sums sums(family.ranks.target);
  sums.add(gradients);
  const at::Tensor numbers = sums.numbers();
  numbers.narrow(0, 2, 1).sub_(padding);
  return numbers;
}

at::Tensor sum_values(const NormFamily& family) {
  std::vector<Sums::Summand> values;
  for (const Shard& slice : family.slices) {
    if (slice.param->counts(family.ranks.at)) values.push_back({slice.values});
  }
  Sums sums(family.ranks.target);
  sums.add(values);
  return sums.numbers();
}

at::Tensor on_host(const std::vector<NormFamily>& families, const at::Tensor& numbers) {
  return device::read_on_host(families.front().ranks.target, numbers);
}

}  // namespace

at::Tensor gradient_numbers(const std::vector<NormFamily>& families) {
  return reduce_families(families, sum_gradients);
}

GradientStats gradient_stats(const std::vector<NormFamily>& families) {
  const at::Tensor host = on_host(families, gradient_numbers(families));
  const double* values = host.const_data_ptr<double>();
  return {std::sqrt(values[0]), static_cast<int64_t>(values[2]), static_cast<int64_t>(values[1])};
}

double params_norm(const std::vector<NormFamily>& families) {
  return std::sqrt(on_host(families, reduce_families(families, sum_values)).const_data_ptr<double>()[0]);
}

const Shard* first_nonfinite(const std::vector<Shard>& slices, const device::Target& target) {
  for (const Shard& slice : slices) {
    Sums sums(target);
    sums.add({{slice.gradient}});
    if (sums.numbers()[1].item<double>() > 0) return &slice;
  }
  return nullptr;
}

}  // namespace metroplex::optim

// The dropout kernel of the GPU against its CPU reference implementation. Its arithmetic also runs block by block on
// the CPU, without a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "kernels/dropout.h"
#include "kernels/dropout_block.h"
#include "support/gpu.h"

namespace metroplex::kernels::dropout_cuda_test {
namespace {

struct Case {
  int64_t rows, width;
  int64_t first;  // number of the first row; with an odd width rows need not begin a Philox block
  double probability;
  bool bias, residual;  // neither: dropout of dy in backward
  bool sample_major = false;
  bool chosen = false;  // every second row of the whole, backwards
};

const std::vector<Case> kCases{{1, 1, 0, 0.5, false, false},
                               {5, 7, 3, 0.3, true, true},
                               {33, 64, 0, 0.1, true, true},
                               {9, 130, 1, 0.9, false, true, true},
                               {64, 1000, 6, 0.25, false, false},
                               {17, 33, 2, 0.0, true, true},
                               {300, 4099, 5, 0.1, true, false},
                               {33, 67, 0, 0.4, false, false, false, true},
                               {9, 131, 10, 0.4, false, false, true, true}};

struct Operands {
  at::Tensor x, bias, residual, counters, chosen;
};

Operands make_operands(const Case& test_case, at::ScalarType dtype) {
  Operands operands;
  // Values without zeros, so that a zero of the result is a dropped element.
  operands.x = at::arange(1, test_case.rows * test_case.width + 1, at::kDouble)
                   .mul(0.7)
                   .sin()
                   .add(1.5)
                   .to(dtype)
                   .view({test_case.rows, test_case.width});
  if (test_case.bias)
    operands.bias = at::arange(1, test_case.width + 1, at::kDouble).mul(0.3).cos().add(1.5).to(dtype);
  if (test_case.residual)
    operands.residual = at::arange(1, test_case.rows * test_case.width + 1, at::kDouble).mul(0.2).cos().to(dtype);
  const int64_t num_samples = test_case.rows % 3 == 0 ? 3 : 1;
  operands.counters = at::arange(num_samples, at::kLong).add(0xF00000000000);
  if (test_case.chosen) operands.chosen = at::arange(test_case.rows / num_samples, at::kLong).mul(2).flip(0);
  return operands;
}

Operands to(const Operands& operands, at::Device device) {
  const auto move = [&](const at::Tensor& x) { return x.defined() ? x.to(device) : x; };
  return {move(operands.x), move(operands.bias), move(operands.residual), move(operands.counters),
          move(operands.chosen)};
}

template <class T, class Run>
at::Tensor result(const Case& test_case, const Operands& operands, const Run& run) {
  at::Tensor out = at::full_like(operands.x, -77);
  const auto read = [](const at::Tensor& x) -> const T* { return x.defined() ? x.const_data_ptr<T>() : nullptr; };
  DropoutRows rows{operands.counters.const_data_ptr<int64_t>(), operands.counters.numel(), test_case.first,
                   test_case.sample_major};
  if (test_case.chosen) {
    rows.chosen = operands.chosen.const_data_ptr<int64_t>();
    rows.num_chosen = operands.chosen.numel();
    rows.whole = 2 * operands.chosen.numel();
  }
  const DropoutShape shape{rows, test_case.rows, test_case.width, 0x123456789ABCDEF0ull, test_case.probability};
  run(DropoutOperands<T>{read(operands.x), read(operands.bias), read(operands.residual),
                         out.template mutable_data_ptr<T>()},
      shape);
  return out;
}

template <class T>
at::Tensor cpu_twin(const Case& test_case, const Operands& operands) {
  return result<T>(test_case, operands,
                   [](const DropoutOperands<T>& p, const DropoutShape& shape) { bias_dropout_add(p, shape); });
}

// Both do the same operations: (x + bias) * scale + residual. Either may fuse the last two, which omits the rounding
// of the product, half an ulp of it; each rounds the sum once.
template <class T>
void expect_twins(const at::Tensor& got, const Case& test_case, const Operands& operands) {
  const at::Tensor expected = cpu_twin<T>(test_case, operands);
  const double scale = 1.0 / (1.0 - test_case.probability);
  const at::Tensor with_bias = operands.bias.defined() ? operands.x + operands.bias : operands.x;
  const at::Tensor bound =
      (with_bias.abs().to(at::kDouble) * scale + expected.abs()) * std::numeric_limits<T>::epsilon();
  const at::Tensor error = (got.to(at::kDouble) - expected.to(at::kDouble)).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>()) << "rows " << test_case.rows << " width " << test_case.width;
  const bool same_mask = test_case.residual || at::equal(got.eq(0), expected.eq(0));  // a residual hides the zeros
  EXPECT_TRUE(same_mask) << "rows " << test_case.rows << " width " << test_case.width;
}

template <class T>
void check_blocks() {
  for (const Case& test_case : kCases) {
    const Operands operands = make_operands(test_case, at::CppTypeToScalarType<T>::value);
    const at::Tensor got = result<T>(test_case, operands, [](const DropoutOperands<T>& p, const DropoutShape& shape) {
      const DropoutFactor<T> factor(shape.probability);
      for (int64_t item = 0; item < shape.num_rows * dropout_blocks_per_row(shape.width); ++item)
        dropout_block(p, shape, factor, item);
    });
    expect_twins<T>(got, test_case, operands);
  }
}

TEST(DropoutBlock, BlockByBlockTheHostGetsWhatTheCpuTwinGets) {
  check_blocks<float>();
  check_blocks<double>();
}

TEST(DropoutBlock, DropsTheShareThatTheProbabilitySays) {
  const Case test_case{64, 1000, 6, 0.25, false, false};
  const double share =
      cpu_twin<float>(test_case, make_operands(test_case, at::kFloat)).eq(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(share, 0.25, 4 * std::sqrt(0.25 * 0.75 / 64000));  // four standard deviations of 64,000 samples
}

template <class T>
void check_on_gpu() {
  for (const Case& test_case : kCases) {
    const Operands host = make_operands(test_case, at::CppTypeToScalarType<T>::value);
    const at::Tensor got =
        result<T>(test_case, to(host, at::kCUDA), [](const DropoutOperands<T>& operands, const DropoutShape& shape) {
          bias_dropout_add_cuda(operands, shape, device::current_stream());
        });
    expect_twins<T>(got.to(at::kCPU), test_case, host);
  }
}

// The error message of a call that cannot run.
std::string refusal() {
  float value = 1;
  const int64_t sample = 0;
  try {
    bias_dropout_add_cuda<float, float>({&value, nullptr, nullptr, &value}, {{&sample}, 1, 1, 0, 0.5}, nullptr);
  } catch (const base::Error& error) { return error.what(); }
  return "nothing";
}

TEST(DropoutCuda, TheGpuGetsWhatTheCpuTwinGetsAndWithoutOneTheCallSaysSo) {
  if (const char* why = expected_refusal()) {
    EXPECT_NE(refusal().find(std::string("[cuda] kernel bias_dropout_add") + why), std::string::npos) << refusal();
  }
  MPX_NEED_GPU_KERNELS();
  check_on_gpu<float>();
  check_on_gpu<double>();
}

}  // namespace
}  // namespace metroplex::kernels::dropout_cuda_test

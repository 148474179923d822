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

Operands operands_of(const Case& c, at::ScalarType dtype) {
  Operands o;
  // Values without zeros, so that a zero of the result is a dropped element.
  o.x = at::arange(1, c.rows * c.width + 1, at::kDouble).mul(0.7).sin().add(1.5).to(dtype).view({c.rows, c.width});
  if (c.bias) o.bias = at::arange(1, c.width + 1, at::kDouble).mul(0.3).cos().add(1.5).to(dtype);
  if (c.residual) o.residual = at::arange(1, c.rows * c.width + 1, at::kDouble).mul(0.2).cos().to(dtype);
  const int64_t num_samples = c.rows % 3 == 0 ? 3 : 1;
  o.counters = at::arange(num_samples, at::kLong).add(0xF00000000000);
  if (c.chosen) o.chosen = at::arange(c.rows / num_samples, at::kLong).mul(2).flip(0);
  return o;
}

Operands to(const Operands& o, at::Device device) {
  const auto move = [&](const at::Tensor& x) { return x.defined() ? x.to(device) : x; };
  return {move(o.x), move(o.bias), move(o.residual), move(o.counters), move(o.chosen)};
}

template <class T, class Run>
at::Tensor result(const Case& c, const Operands& o, const Run& run) {
  at::Tensor out = at::full_like(o.x, -77);
  const auto read = [](const at::Tensor& x) -> const T* { return x.defined() ? x.const_data_ptr<T>() : nullptr; };
  DropoutRows rows{o.counters.const_data_ptr<int64_t>(), o.counters.numel(), c.first, c.sample_major};
  if (c.chosen) {
    rows.chosen = o.chosen.const_data_ptr<int64_t>();
    rows.num_chosen = o.chosen.numel();
    rows.whole = 2 * o.chosen.numel();
  }
  const DropoutShape shape{rows, c.rows, c.width, 0x123456789ABCDEF0ull, c.probability};
  run(DropoutOperands<T>{read(o.x), read(o.bias), read(o.residual), out.template mutable_data_ptr<T>()}, shape);
  return out;
}

template <class T>
at::Tensor cpu_twin(const Case& c, const Operands& o) {
  return result<T>(c, o, [](const DropoutOperands<T>& p, const DropoutShape& shape) { bias_dropout_add(p, shape); });
}

// Both do the same operations: (x + bias) * scale + residual. Either may fuse the last two, which omits the rounding
// of the product, half an ulp of it; each rounds the sum once.
template <class T>
void expect_twins(const at::Tensor& got, const Case& c, const Operands& o) {
  const at::Tensor expected = cpu_twin<T>(c, o);
  const double scale = 1.0 / (1.0 - c.probability);
  const at::Tensor with_bias = o.bias.defined() ? o.x + o.bias : o.x;
  const at::Tensor bound =
      (with_bias.abs().to(at::kDouble) * scale + expected.abs()) * std::numeric_limits<T>::epsilon();
  const at::Tensor error = (got.to(at::kDouble) - expected.to(at::kDouble)).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>()) << "rows " << c.rows << " width " << c.width;
  const bool same_mask = c.residual || at::equal(got.eq(0), expected.eq(0));  // a residual hides the zeros
  EXPECT_TRUE(same_mask) << "rows " << c.rows << " width " << c.width;
}

template <class T>
void check_blocks() {
  for (const Case& c : kCases) {
    const Operands o = operands_of(c, at::CppTypeToScalarType<T>::value);
    const at::Tensor got = result<T>(c, o, [](const DropoutOperands<T>& p, const DropoutShape& s) {
      const DropoutFactor<T> factor(s.probability);
      for (int64_t item = 0; item < s.num_rows * dropout_blocks_per_row(s.width); ++item)
        dropout_block(p, s, factor, item);
    });
    expect_twins<T>(got, c, o);
  }
}

TEST(DropoutBlock, BlockByBlockTheHostGetsWhatTheCpuTwinGets) {
  check_blocks<float>();
  check_blocks<double>();
}

TEST(DropoutBlock, DropsTheShareThatTheProbabilitySays) {
  const Case c{64, 1000, 6, 0.25, false, false};
  const double share = cpu_twin<float>(c, operands_of(c, at::kFloat)).eq(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(share, 0.25, 4 * std::sqrt(0.25 * 0.75 / 64000));  // four standard deviations of 64,000 samples
}

template <class T>
void check_on_gpu() {
  for (const Case& c : kCases) {
    const Operands host = operands_of(c, at::CppTypeToScalarType<T>::value);
    const at::Tensor got = result<T>(c, to(host, at::kCUDA), [](const DropoutOperands<T>& p, const DropoutShape& s) {
      bias_dropout_add_cuda(p, s, device::current_stream());
    });
    expect_twins<T>(got.to(at::kCPU), c, host);
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

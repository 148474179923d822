// Codes and their products on a GPU, with every recipe that it supports, against the codes of the CPU and the
// products of their values in float64.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "nn/operand_rounding.h"
#include "nn/tools.h"
#include "support/error_of.h"
#include "support/gpu.h"

namespace metroplex::test::scaled_product_cuda_test {
namespace {

using nn::Operand;
using nn::SumOver;

config::Precision library_precision(const std::string& name, config::Fp8Format format = config::Fp8Format::hybrid) {
  config::Precision precision;
  precision.fp8_products = config::Fp8Products::library;
  if (name == "nvfp4") {
    precision.fp4_format = config::Fp4Format::e2m1;
    return precision;
  }
  precision.fp8_format = format;
  precision.fp8_recipe = config::Choice<config::Fp8Recipe>(name);
  return precision;
}

nn::OperandRounding make_rounding(const config::Precision& precision, at::Device device) {
  nn::LayerContext context = layer_context({}, false, at::kBFloat16);
  context.precision = precision;
  context.target.device = device;
  nn::OperandRounding rounding{context, "l", {}};
  rounding.set_gradient_columns(384, {});
  return rounding;
}

struct Both {
  nn::OperandRounding cpu, gpu;

  // Codes of the GPU, which must be those of the CPU.
  nn::MatrixCodes encode(const at::Tensor& x, Operand operand) const {
    const at::Tensor counter = at::full({1}, 5, at::kLong), there = counter.to(at::kCUDA);
    const int64_t rows = x.size(0);
    const nn::MatrixCodes want =
        cpu.encode_matrix(x, operand, {true, true}, {.positions = cpu.positions(rows, 0, counter)});
    const nn::MatrixCodes got =
        gpu.encode_matrix(x.to(at::kCUDA), operand, {true, true}, {.positions = gpu.positions(rows, 0, there)});
    for (const auto& [there_codes, codes] : {std::pair{got.columns, want.columns}, {got.rows, want.rows}}) {
      EXPECT_TRUE(there_codes.codes.view(at::kByte).cpu().equal(codes.codes.view(at::kByte)));
      EXPECT_TRUE(there_codes.decode.view(at::kByte).cpu().equal(codes.decode.view(at::kByte)));
    }
    return got;
  }
};

device::Target gpu_target() {
  device::Target target;
  target.device = at::kCUDA;
  return target;
}

// Tensor cores add products of codes with at least 13 fraction bits, so a sum is off by less than 2^-10 of the sum of
// magnitudes. The result rounds to bf16.
// `added`: what the sum was rounded with.
void expect_values(const at::Tensor& product, const at::Tensor& left, const at::Tensor& right,
                   const at::Tensor& added = {}) {
  const at::Tensor got = product.cpu().to(at::kDouble), a = left.cpu().to(at::kDouble),
                   b = right.cpu().to(at::kDouble), want = a.mm(b.t()),
                   sum = added.defined() ? want + added.to(at::kDouble) : want,
                   bound = a.abs().mm(b.abs().t()) * 0x1p-10 + sum.abs() * 0x1p-8;
  EXPECT_TRUE((got - want).abs().le(bound).all().item<bool>());
}

void expect_product(const nn::Codes& left, const nn::Codes& right) {
  expect_values(nn::scaled_product(gpu_target(), left, right, at::kBFloat16, "l"), left.values(), right.values());
}

TEST(ScaledProductOnGpu, EqualsTheProductOfValues) {
  MPX_NEED_GPU_KERNELS();
  const at::Tensor x = sample({192, 256}, 1, at::kBFloat16), weight = sample({384, 256}, 2, at::kBFloat16),
                   dy = sample({192, 384}, 3, at::kBFloat16);
  for (const std::string name : {"tensorwise", "blockwise", "mxfp8", "nvfp4"}) {
    SCOPED_TRACE(name);
    const config::Precision precision = library_precision(name);
    const config::Recipe recipe = precision.recipe();
    if (!catch_error([&] { nn::check_code_product(recipe, gpu_target().capability()); }).empty()) continue;
    const Both both{make_rounding(precision, at::kCPU), make_rounding(precision, at::kCUDA)};
    const nn::MatrixCodes of_x = both.encode(x, Operand::input), of_weight = both.encode(weight, Operand::weight),
                          of_dy = both.encode(dy, Operand::gradient);
    expect_product(of_x.columns, of_weight.columns);
    expect_product(of_dy.columns, of_weight.rows);
    expect_product(of_dy.rows, of_x.rows);
  }
}

// The library adds to a gradient of bf16 or fp32, or overwrites it.
TEST(ScaledProductOnGpu, IsAddedToAGradient) {
  MPX_NEED_GPU_KERNELS();
  const at::Tensor x = sample({192, 256}, 1, at::kBFloat16), dy = sample({192, 384}, 3, at::kBFloat16);
  for (const std::string name : {"tensorwise", "blockwise", "mxfp8", "nvfp4"}) {
    const config::Precision precision = library_precision(name);
    const config::Recipe recipe = precision.recipe();
    if (!catch_error([&] { nn::check_code_product(recipe, gpu_target().capability()); }).empty()) continue;
    const Both both{make_rounding(precision, at::kCPU), make_rounding(precision, at::kCUDA)};
    const nn::Codes left = both.encode(dy, Operand::gradient).rows, right = both.encode(x, Operand::input).rows;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const bool adds : {false, true}) {
        SCOPED_TRACE(testing::Message() << name << " " << at::toString(type) << " " << adds);
        const at::Tensor before = sample({384, 256}, 4, type).to(at::kCUDA), gradient = before.clone();
        nn::put_scaled_product(gpu_target(), gradient, left, right, "l", adds);
        expect_values(gradient.to(at::kDouble) - (adds ? 1 : 0) * before.to(at::kDouble), left.values(),
                      right.values(), adds ? before.cpu() : at::Tensor());
      }
    }
  }
}

// Groups with uneven numbers of rows, one without, and rows after the last one.
TEST(ScaledProductOnGpu, EqualsTheProductsOfGroups) {
  MPX_NEED_GPU_KERNELS();
  constexpr int64_t kGroups = 4, kIn = 256, kOut = 384;
  const std::vector<int64_t> counts = {40, 0, 130, 22};
  const at::Tensor device_counts = at::tensor(counts, at::kLong).to(at::kCUDA),
                   ends = device_counts.cumsum(0).to(at::kInt),
                   weights = sample({kGroups, kOut, kIn}, 2, at::kBFloat16).to(at::kCUDA);
  for (const std::string name : {"tensorwise", "mxfp8"}) {
    SCOPED_TRACE(name);
    const config::Precision precision = library_precision(name, config::Fp8Format::e4m3);
    if (!nn::multiplies_grouped_codes(precision.recipe(), gpu_target().capability())) continue;
    const nn::OperandRounding rounding = make_rounding(precision, at::kCUDA);
    for (const bool forward : {true, false}) {
      const at::Tensor x = sample({200, forward ? kIn : kOut}, 1, at::kBFloat16).to(at::kCUDA);
      const nn::Codes rows = rounding.encode(x, forward ? Operand::input : Operand::gradient, SumOver::columns,
                                             {.groups = {kGroups, device_counts}}),
                      stack = rounding.encode(weights, Operand::weight, forward ? SumOver::columns : SumOver::rows,
                                              {.groups = {kGroups, {}}});
      const at::Tensor got =
          nn::scaled_grouped_product(gpu_target(), nn::grouped_codes(rows, stack, forward), ends, 1, "l");
      const at::Tensor of_rows = rows.values(), of_stack = stack.values().view({kGroups, kOut, kIn});
      for (int64_t group = 0, first = 0; group < kGroups; first += counts[static_cast<size_t>(group++)]) {
        const int64_t count = counts[static_cast<size_t>(group)];
        const at::Tensor matrix = forward ? of_stack[group] : of_stack[group].t();
        expect_values(got.narrow(0, first, count), of_rows.narrow(0, first, count), matrix);
      }
    }
  }
}

}  // namespace
}  // namespace metroplex::test::scaled_product_cuda_test

// Figures of rounded operands against plain sums in float64. Layouts: run/rounding_figures_ranks_test.cpp.
#include "nn/rounding_meter.h"

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "nn/operand_rounding.h"
#include "nn/tools.h"

namespace metroplex::test::rounding_meter_test {
namespace {

using kernels::RoundingFigures;
using nn::Operand;
using nn::SumOver;

config::Precision make_precision(const std::string& name) {
  config::Precision precision;
  if (name == "nvfp4") {
    precision.fp4_format = config::Fp4Format::e2m1;
    return precision;
  }
  precision.fp8_format = config::Choice<config::Fp8Format>("hybrid");
  precision.fp8_recipe = config::Choice<config::Fp8Recipe>(name);
  return precision;
}

nn::LayerContext make_context(const config::Precision& precision, std::shared_ptr<nn::RoundingMeter> meter) {
  nn::LayerContext context = layer_context({}, false, at::kDouble);
  context.precision = precision;
  context.rounding_meter = std::move(meter);
  return context;
}

// The rounding of a layer whose history of delayed scales has the magnitude kUsed for all operands.
constexpr double kUsed = 0.5;
struct Measured {
  std::shared_ptr<nn::RoundingMeter> meter = std::make_shared<nn::RoundingMeter>(device::Target());
  nn::OperandRounding rounding;

  explicit Measured(const std::string& name, at::ScalarType type = at::kDouble)
      : Measured(make_precision(name), type) {}
  explicit Measured(const config::Precision& precision, at::ScalarType type = at::kDouble)
      : rounding(make_context(precision, meter), "l", {}) {
    rounding.set_gradient_columns(200, {});
    if (const auto history = rounding.make_history("l", type, {})) history->data.fill_(kUsed);
    meter->start();
  }
  RoundingFigures figures(Operand operand) const {
    const at::Tensor row = meter->figures().select(0, 0).select(0, static_cast<int64_t>(operand)).contiguous();
    return *static_cast<const RoundingFigures*>(row.const_data_ptr());
  }
};

double total(const at::Tensor& x) { return x.to(at::kDouble).sum().item<double>(); }

// Rounds positive numbers to E4M3, ties to even.
at::Tensor round_to_e4m3(const at::Tensor& x) {
  const at::Tensor step = at::exp2(at::floor(at::log2(x.clamp_min(0x1p-6))) - 3);
  return (at::round(x / step) * step).clamp_max(448);
}

// The largest magnitude that an operand of one group can have after the rounding, for each element of x, in float64;
// infinite if the block of the element becomes 0. Blocks of power-of-two factors represent all of their values.
at::Tensor limits(const config::Precision& precision, const at::Tensor& x, bool is_weight) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (precision.fp4_format == config::Fp4Format::none)
    return at::full_like(x, precision.fp8_recipe == config::Fp8Recipe::delayed ? kUsed : infinity);
  constexpr int64_t kSize = 16;
  const int64_t height = is_weight && precision.fp4_square_weights ? kSize : 1,
                row_blocks = (x.size(0) + height - 1) / height, column_blocks = (x.size(1) + kSize - 1) / kSize;
  at::Tensor padded = at::zeros({row_blocks * height, column_blocks * kSize}, at::kDouble);
  padded.narrow(0, 0, x.size(0)).narrow(1, 0, x.size(1)).copy_(x.abs());
  const at::Tensor blocks = padded.view({row_blocks, height, column_blocks, kSize});
  const double scale = 448.0 * 6 / x.abs().max().item<double>();
  const at::Tensor limit = round_to_e4m3(blocks.amax({1, 3}, true) / 6 * scale) / scale * 6,
                   usable = at::where(limit.eq(0), infinity, limit).expand(blocks.sizes());
  return usable.reshape(padded.sizes()).narrow(0, 0, x.size(0)).narrow(1, 0, x.size(1));
}

// Counts are exact. A sum of n positive terms rounds n times by at most 2^-53 of the result. `limit`: limits(). A
// block's largest value can be its limit, but for at most five roundings of fp32.
void expect_figures(const RoundingFigures& got, const at::Tensor& given, const at::Tensor& rounded,
                    const at::Tensor& limit) {
  const at::Tensor x = given.to(at::kDouble), error = rounded.to(at::kDouble) - x;
  const double bound = static_cast<double>(x.numel()) * 0x1p-52;  // of both sums
  EXPECT_EQ(got.elements, x.numel());
  EXPECT_EQ(got.nonfinite, 0);
  EXPECT_EQ(got.saturated, total(x.abs().gt(limit * (1 + 0x1p-21))));
  EXPECT_EQ(got.flushed, total(x.ne(0).logical_and(rounded.eq(0))));
  EXPECT_NEAR(got.squared_error, total(error * error), bound * total(error * error));
  EXPECT_NEAR(got.squares, total(x * x), bound * total(x * x));
  EXPECT_EQ(got.largest, x.abs().max().item<double>());
}

// Magnitudes over 40 powers of two, and zeros: some values are flushed in each recipe, also in blocks.
at::Tensor wide_values(std::vector<int64_t> sizes, int64_t seed, at::ScalarType type) {
  const at::Tensor index = at::arange(topology::numel(sizes), at::kLong) * 7919 + seed;
  const at::Tensor x = sample(sizes, seed, at::kDouble) * at::exp2(-index.remainder(41).to(at::kDouble)).view(sizes);
  return x.mul(index.remainder(13).ne(0).view(sizes)).to(type);
}

constexpr std::array kOperands = {Operand::input, Operand::weight, Operand::gradient};

void expect_float64(const std::string& name, const config::Precision& precision, at::ScalarType type) {
  const Measured measured(precision, type);
  const bool delayed = name == "delayed", fp4 = name == "nvfp4", tensor = delayed || fp4 || name == "tensorwise";
  const at::Tensor counter = at::zeros({1}, at::kLong);
  for (const Operand operand : kOperands) {
    SCOPED_TRACE(testing::Message() << name << " " << at::toString(type) << " " << static_cast<int>(operand));
    const at::Tensor x = wide_values({37, 200}, 1 + static_cast<int64_t>(operand), type);
    const at::Tensor rounded = measured.rounding.round(
        x, operand, SumOver::columns, {.counts = true, .positions = measured.rounding.positions(37, 0, counter)});
    const RoundingFigures got = measured.figures(operand);
    const double used = delayed ? kUsed : x.abs().max().item<double>();
    expect_figures(got, x, rounded, limits(precision, x.to(at::kDouble), operand == Operand::weight));
    EXPECT_GT(got.flushed, 0);
    EXPECT_EQ(got.saturated > 0, delayed || fp4);
    // The division and its inverse each round by 2^-24 in fp32.
    const double want = tensor ? used / (fp4 ? 2688 : operand == Operand::gradient ? 57344 : 448) : 0;
    EXPECT_NEAR(got.decode, want, want * 0x1p-22);
  }
}

TEST(RoundingMeter, FiguresAreThoseOfFloat64) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const char* const name : {"delayed", "tensorwise", "blockwise", "mxfp8", "nvfp4"})
      expect_float64(name, make_precision(name), type);
    config::Precision rows = make_precision("nvfp4");  // nearest values, and no square blocks
    rows.fp4_square_weights = false, rows.fp4_stochastic_rounding = false;
    expect_float64("nvfp4", rows, type);
  }
}

// A row is a block, the largest value of the tensor is 448 * 6, and 6 times the rounded factor of a block is its
// limit. Factors round down, to a tie of even fractions, up, in the subnormal range, and to 0.
TEST(RoundingMeter, BlocksWhoseFactorsRoundDownSaturate) {
  const std::vector<double> largest = {2688, 6 * 16.75, 6 * 17, 6 * 17.5, 6 * 0x1.7p-9, 6 * 0x1.8p-9, 6 * 0x1p-11};
  const at::Tensor limit =
      at::tensor({448.0, 16.0, 16.0, 18.0, 0x1p-9, 0x1p-8, 0.0}, at::kDouble).mul(6).view({7, 1});
  const at::Tensor within = 1 - at::arange(16, at::kDouble) / 64,
                   signs = at::arange(16, at::kDouble).remainder(2) * 2 - 1;
  const at::Tensor x = at::tensor(largest, at::kDouble).view({7, 1}) * within * signs;
  const at::Tensor beyond = x.abs().gt(limit).logical_and(limit.gt(0));
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const Measured measured("nvfp4", type);
    const at::Tensor rounded =
        measured.rounding.round(x.to(type), Operand::input, SumOver::columns, {.counts = true});
    const RoundingFigures got = measured.figures(Operand::input);
    EXPECT_EQ(got.saturated, total(beyond)) << at::toString(type);
    EXPECT_EQ(got.flushed, 16);
    EXPECT_EQ(got.decode, 1);
    EXPECT_TRUE(rounded.abs().to(at::kDouble).eq(limit).logical_or(beyond.logical_not()).all().item<bool>());
  }
  EXPECT_EQ(beyond.any(1).sum().item<int64_t>(), 3);
}

// The quotient of the largest code and a magnitude next to it, or next to a power of two, is next to a power of two.
// Rounded up to it, the factor would saturate the block.
TEST(RoundingMeter, BlocksOfPowersOfTwoDoNotSaturate) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const double unit = type == at::kDouble ? 0x1p-52 : 0x1p-23;
    std::vector<double> largest;
    for (const double code : {1.0, 448.0, 57344.0}) {
      for (const double step : {-1.0, -0.5, 0.0, 1.0, 2.0}) {
        for (const double power : {0x1p-120, 0x1p-1, 0x1p60}) largest.push_back(code * (1 + step * unit) * power);
      }
    }
    const at::Tensor x = at::tensor(largest, at::kDouble).view({-1, 1}).expand({-1, 32}).to(type);
    const Measured measured("mxfp8", type);
    for (const Operand operand : kOperands) {
      measured.rounding.round(x, operand, SumOver::columns, {.counts = true});
      const RoundingFigures got = measured.figures(operand);
      EXPECT_EQ(got.elements, x.numel());
      EXPECT_EQ(got.nonfinite, 0);
      EXPECT_EQ(got.saturated, 0) << at::toString(type) << " " << static_cast<int>(operand);
      EXPECT_EQ(got.decode, 0);
    }
  }
}

// Rows after the last group do not count, nor does the factor of a group without rows, which is 1.
TEST(RoundingMeter, FiguresOfGroupsSkipOtherRows) {
  for (const char* const name : {"tensorwise", "nvfp4"}) {
    SCOPED_TRACE(name);
    const Measured measured(name);
    at::Tensor x = wide_values({12, 40}, 5, at::kDouble) * 10;
    x.narrow(0, 0, 4).mul_(7), x.narrow(0, 9, 3).mul_(1e6);
    const at::Tensor counts = at::tensor({4, 0, 5}, at::kLong);
    const at::Tensor rounded = measured.rounding.round(x, Operand::input, SumOver::columns, {{3, counts}, true});
    const RoundingFigures got = measured.figures(Operand::input);
    const config::Precision precision = make_precision(name);
    const at::Tensor limit =
        at::cat({limits(precision, x.narrow(0, 0, 4), false), limits(precision, x.narrow(0, 4, 5), false)});
    expect_figures(got, x.narrow(0, 0, 9), rounded.narrow(0, 0, 9), limit);
    const double largest = x.narrow(0, 0, 9).abs().max().item<double>() / (name == std::string("nvfp4") ? 2688 : 448);
    EXPECT_NEAR(got.decode, largest, largest * 4 * 0x1p-53);  // three divisions in fp64 round once each
    EXPECT_LT(got.decode, 1);
  }
}

// Square blocks do not contain elements of two matrices.
TEST(RoundingMeter, FiguresOfSquareBlocksEndWithMatrix) {
  const Measured measured("nvfp4");
  at::Tensor x = wide_values({3, 21, 40}, 5, at::kDouble);
  x[1].mul_(50);
  const at::Tensor rounded = measured.rounding.round(x, Operand::weight, SumOver::columns, {{3, {}}, true});
  std::vector<at::Tensor> limit;
  for (int64_t i = 0; i < 3; ++i) limit.push_back(limits(make_precision("nvfp4"), x[i], true));
  expect_figures(measured.figures(Operand::weight), x, rounded, at::stack(limit));
}

TEST(RoundingMeter, CountsElementsThatAreNotFinite) {
  const Measured measured("delayed");
  at::Tensor x = at::full({4, 8}, 0.25, at::kDouble);
  x[0][1] = std::numeric_limits<double>::infinity(), x[3][7] = std::numeric_limits<double>::quiet_NaN();
  measured.rounding.round(x, Operand::weight, SumOver::columns, {.counts = true});
  const RoundingFigures got = measured.figures(Operand::weight);
  EXPECT_EQ(got.elements, 32);
  EXPECT_EQ(got.nonfinite, 2);
  EXPECT_EQ(got.largest, 0.25);
  EXPECT_EQ(got.squares, 30 * 0.0625);
}

// Microbatches add up. Other roundings, other steps, and layers without rounding do not count.
TEST(RoundingMeter, MeasuresFirstRoundingsOfStep) {
  Measured measured("mxfp8");
  const at::Tensor x = sample({4, 32}, 1, at::kDouble);
  const auto round = [&](const at::Tensor& values, bool counts) {
    measured.rounding.round(values, Operand::input, SumOver::columns, {.counts = counts});
    return measured.figures(Operand::input);
  };
  EXPECT_EQ(round(x, true).elements, 128);
  EXPECT_EQ(round(2 * x, true).elements, 256);
  EXPECT_EQ(round(3 * x, false).largest, 2 * x.abs().max().item<double>());
  EXPECT_EQ(measured.figures(Operand::weight).elements, 0);
  measured.meter->clear();
  EXPECT_EQ(measured.figures(Operand::input).elements, 0);
  measured.meter->stop();
  EXPECT_EQ(round(x, true).elements, 0);
  const nn::OperandRounding none(make_context({}, measured.meter), "none", {});
  EXPECT_EQ(measured.meter->layers().size(), 1u);
  EXPECT_EQ(measured.meter->add("l"), 0);
}

}  // namespace
}  // namespace metroplex::test::rounding_meter_test

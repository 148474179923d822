// Figures of rounded operands against plain sums in float64. Layouts: run/rounding_figures_ranks_test.cpp.
#include "nn/rounding_meter.h"

#include <limits>

#include "nn/operand_rounding.h"
#include "nn/tools.h"

namespace metroplex::test::rounding_meter_test {
namespace {

using kernels::RoundingFigures;
using nn::Operand;
using nn::SumOver;

config::Precision recipe(const char* name) {
  config::Precision precision;
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

  explicit Measured(const char* name, at::ScalarType type = at::kDouble)
      : rounding(make_context(recipe(name), meter), "l", {}) {
    if (const auto history = rounding.make_history("l", type, {})) history->data.fill_(kUsed);
    meter->start();
  }
  RoundingFigures figures(Operand operand) const {
    const at::Tensor row = meter->figures().select(0, 0).select(0, static_cast<int64_t>(operand)).contiguous();
    return *static_cast<const RoundingFigures*>(row.const_data_ptr());
  }
};

double total(const at::Tensor& x) { return x.to(at::kDouble).sum().item<double>(); }

// Counts are exact. A sum of n positive terms rounds n times by at most 2^-53 of the result.
void expect_figures(const RoundingFigures& got, const at::Tensor& given, const at::Tensor& rounded, double limit) {
  const at::Tensor x = given.to(at::kDouble), error = rounded.to(at::kDouble) - x;
  const double bound = static_cast<double>(x.numel()) * 0x1p-52;  // of both sums
  EXPECT_EQ(got.elements, x.numel());
  EXPECT_EQ(got.nonfinite, 0);
  EXPECT_EQ(got.saturated, total(x.abs().gt(limit)));
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

TEST(RoundingMeter, FiguresAreThoseOfFloat64) {
  for (const char* const name : {"delayed", "tensorwise", "blockwise", "mxfp8"}) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const Measured measured(name, type);
      const bool delayed = std::string(name) == "delayed", tensor = delayed || std::string(name) == "tensorwise";
      for (const Operand operand : {Operand::input, Operand::weight, Operand::gradient}) {
        SCOPED_TRACE(testing::Message() << name << " " << at::toString(type) << " " << static_cast<int>(operand));
        const at::Tensor x = wide_values({37, 200}, 1 + static_cast<int64_t>(operand), type);
        const at::Tensor rounded = measured.rounding.round(x, operand, SumOver::columns, {.counts = true});
        const RoundingFigures got = measured.figures(operand);
        const double largest = x.abs().max().item<double>(), used = delayed ? kUsed : largest;
        expect_figures(got, x, rounded, delayed ? kUsed : std::numeric_limits<double>::infinity());
        EXPECT_GT(got.flushed, 0);
        EXPECT_EQ(got.saturated > 0, delayed);
        // The division and its inverse each round by 2^-24 in fp32.
        const double want = tensor ? used / (operand == Operand::gradient ? 57344 : 448) : 0;
        EXPECT_NEAR(got.decode, want, want * 0x1p-22);
      }
    }
  }
}

// Rows after the last group do not count, nor does the factor of a group without rows, which is 1.
TEST(RoundingMeter, FiguresOfGroupsSkipOtherRows) {
  const Measured measured("tensorwise");
  const at::Tensor x = wide_values({12, 40}, 5, at::kDouble) * 100;
  const at::Tensor counts = at::tensor({4, 0, 5}, at::kLong);
  const at::Tensor rounded = measured.rounding.round(x, Operand::input, SumOver::columns, {{3, counts}, true});
  const RoundingFigures got = measured.figures(Operand::input);
  expect_figures(got, x.narrow(0, 0, 9), rounded.narrow(0, 0, 9), std::numeric_limits<double>::infinity());
  const double largest = x.narrow(0, 0, 9).abs().max().item<double>();
  EXPECT_NEAR(got.decode, largest / 448, largest * 0x1p-50);
  EXPECT_LT(got.decode, 1);
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

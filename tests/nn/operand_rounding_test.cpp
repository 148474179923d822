// Products with rounded operands against the products of the rounded values in float64, and the history of delayed
// scales. Layouts: run/low_precision_ranks_test.cpp.
#include <ATen/core/grad_mode.h>

#include "nn/linear.h"
#include "nn/operand_rounding.h"
#include "nn/tools.h"
#include "support/error_of.h"

namespace metroplex::test::operand_rounding_test {
namespace {

using nn::Operand;
using nn::SumOver;

config::Precision recipe(const std::string& name, const char* format = "hybrid") {
  config::Precision precision;
  if (name == "nvfp4") {
    precision.fp4_format = config::Fp4Format::e2m1;
    precision.fp4_stochastic_rounding = false;
    return precision;
  }
  precision.fp8_format = config::Choice<config::Fp8Format>(format);
  precision.fp8_recipe = config::Choice<config::Fp8Recipe>(name);
  return precision;
}

nn::OperandRounding make_rounding(const config::Precision& precision) {
  nn::LayerContext context = layer_context({}, false, at::kDouble);
  context.precision = precision;
  return {context, "l", {}};
}

struct Results {
  at::Tensor y, dx, dw;
};

// x [20, 2, 48] through a layer [48 -> 40].
Results run(const config::Precision& precision, at::ScalarType type, const at::Tensor& x, const at::Tensor& weight,
            const at::Tensor& dy) {
  nn::LayerContext context = layer_context({}, false, type);
  context.precision = precision;
  nn::Linear layer(nn::linear_spec("l", weight.size(1), weight.size(0), false), nn::LinearSplit::none, context);
  std::vector<nn::Param*> params;
  layer.collect_params(params);
  params[0]->data.copy_(weight);
  give_main_grad(params);
  const at::Tensor input = x.clone().requires_grad_();
  const at::Tensor y = layer.forward(input);
  y.backward(dy);
  return {y.detach(), input.grad(), params[0]->main_grad};
}

// Every sum of n products rounds n times by 2^-24 of
// the sum of magnitudes; bf16 results round once more, by 2^-8 of the result.
void expect_bound(const char* what, const at::Tensor& got, const at::Tensor& left, const at::Tensor& right,
                  double rounding) {
  const at::Tensor want = left.matmul(right), sizes = left.abs().matmul(right.abs());
  const at::Tensor bound = sizes * (static_cast<double>(left.size(1)) * 0x1p-24) + want.abs() * rounding;
  const at::Tensor excess = (got.to(at::kDouble).reshape(want.sizes()) - want).abs() - bound;
  EXPECT_LE(excess.max().item<double>(), 0) << what;
}

TEST(OperandRounding, ProductsAreThoseOfRoundedValues) {
  for (const char* const name : {"blockwise", "mxfp8", "nvfp4"}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << name << " " << at::toString(type));
      const at::Tensor x = sample({20, 2, 48}, 1, type), weight = sample({40, 48}, 2, type),
                       dy = sample({20, 2, 40}, 3, type);
      const Results got = run(recipe(name), type, x, weight, dy);
      const nn::OperandRounding rounding = make_rounding(recipe(name));
      const auto round = [&](const at::Tensor& tensor, Operand operand, SumOver sum) {
        return rounding.round(tensor.reshape({-1, tensor.size(-1)}), operand, sum).to(at::kDouble);
      };
      // Some CPUs round products of bf16 operands to bf16 before they add them to the gradient.
      const bool in_bf16 = type == at::kBFloat16 && std::string(name) != "nvfp4";
      const double once = type == at::kFloat ? 0x1p-24 : 0x1p-8;
      expect_bound("y", got.y, round(x, Operand::input, SumOver::columns),
                   round(weight, Operand::weight, SumOver::columns).t(), once);
      expect_bound("dx", got.dx, round(dy, Operand::gradient, SumOver::columns),
                   round(weight, Operand::weight, SumOver::rows), once);
      expect_bound("dw", got.dw, round(dy, Operand::gradient, SumOver::rows).t(),
                   round(x, Operand::input, SumOver::rows), in_bf16 ? 0x1p-8 : 0x1p-24);
    }
  }
}

// The same for products of codes. With one factor per operand, libtorch also multiplies the result by the two
// factors: two roundings of fp32, and that of the result's type.
TEST(OperandRounding, ProductsOfCodesAreThoseOfRoundedValues) {
  for (const char* const name : {"tensorwise", "blockwise", "mxfp8", "nvfp4"}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << name << " " << at::toString(type));
      const at::Tensor x = sample({16, 2, 64}, 1, type), weight = sample({96, 64}, 2, type),
                       dy = sample({16, 2, 96}, 3, type);
      config::Precision precision = recipe(name);
      precision.fp8_products = config::Fp8Products::library;
      const Results got = run(precision, type, x, weight, dy);
      const nn::OperandRounding rounding = make_rounding(recipe(name));
      const auto round = [&](const at::Tensor& tensor, Operand operand, SumOver sum) {
        return rounding.round(tensor.reshape({-1, tensor.size(-1)}), operand, sum).to(at::kDouble);
      };
      const double once = type == at::kFloat ? 0x1p-22 : 0x1p-8;
      expect_bound("y", got.y, round(x, Operand::input, SumOver::columns),
                   round(weight, Operand::weight, SumOver::columns).t(), once);
      expect_bound("dx", got.dx, round(dy, Operand::gradient, SumOver::columns),
                   round(weight, Operand::weight, SumOver::rows), once);
      expect_bound("dw", got.dw, round(dy, Operand::gradient, SumOver::rows).t(),
                   round(x, Operand::input, SumOver::rows), 0x1p-22);
    }
  }
}

// Codes have the bits of the rounded values: with rotation, random rounding, and every block.
TEST(OperandRounding, EncodesTheRoundedValues) {
  for (const bool square : {true, false}) {
    config::Precision precision = recipe("nvfp4");
    precision.fp4_stochastic_rounding = true, precision.fp4_square_weights = square;
    precision.fp8_products = config::Fp8Products::library;
    nn::OperandRounding rounding = make_rounding(precision);
    rounding.set_gradient_columns(64, {});
    const at::Tensor counter = at::full({1}, 5, at::kLong);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = sample({40, 64}, 1, type);
      for (const Operand operand : {Operand::input, Operand::weight, Operand::gradient}) {
        for (const SumOver sum : {SumOver::columns, SumOver::rows}) {
          const nn::RoundOptions options{.positions = rounding.positions(40, 0, counter)};
          const nn::Codes codes = rounding.encode(x, operand, sum, options);
          const at::Tensor want = rounding.round(x, operand, sum, options);
          EXPECT_TRUE(codes.values().view(at::kInt).equal(want.view(at::kInt)));
          EXPECT_EQ(codes.block_rows == 16, sum == SumOver::rows || (operand == Operand::weight && square));
        }
      }
    }
  }
}

// Codes for both products are those for each, transposed for sums over rows. `out` is written in place.
TEST(OperandRounding, EncodesBothSidesOfAMatrix) {
  const auto expect_equal = [](const nn::Codes& got, const nn::Codes& want) {
    EXPECT_TRUE(got.codes.view(at::kByte).equal(want.codes.view(at::kByte)));
    EXPECT_TRUE(got.decode.view(at::kByte).equal(want.decode.view(at::kByte)));
    EXPECT_EQ(got.block_rows, want.block_rows);
    EXPECT_EQ(got.block_columns, want.block_columns);
  };
  for (const char* const name : {"tensorwise", "blockwise", "mxfp8", "nvfp4"}) {
    config::Precision precision = recipe(name);
    precision.fp8_products = config::Fp8Products::library;
    const nn::OperandRounding rounding = make_rounding(precision);
    const at::Tensor x = sample({160, 2, 96}, 1, at::kFloat);
    for (const Operand operand : {Operand::input, Operand::weight, Operand::gradient}) {
      SCOPED_TRACE(testing::Message() << name << " " << static_cast<int>(operand));
      const nn::Codes columns = rounding.encode(x, operand, SumOver::columns),
                      rows = nn::transpose({}, rounding.encode(x, operand, SumOver::rows));
      const nn::MatrixCodes both = rounding.encode_matrix(x, operand, {true, true});
      expect_equal(both.columns, columns);
      expect_equal(both.rows, rows);
      EXPECT_FALSE(rounding.encode_matrix(x, operand, {.columns = true}).rows.codes.defined());
      EXPECT_FALSE(rounding.encode_matrix(x, operand, {.rows = true}).columns.codes.defined());
      const nn::MatrixCodes made = rounding.make_matrix_codes(x.sizes(), at::kCPU, operand, {true, true});
      rounding.encode_matrix(x, operand, {true, true}, {}, made);
      expect_equal(made.columns, columns);
      expect_equal(made.rows, rows);
    }
  }
}

// A given magnitude is not found again; that of an earlier call gives the same codes.
TEST(OperandRounding, MagnitudesAreFoundOnce) {
  config::Precision precision = recipe("tensorwise");
  precision.fp8_products = config::Fp8Products::library;
  const nn::OperandRounding rounding = make_rounding(precision);
  const at::Tensor x = sample({16, 32}, 1, at::kFloat);
  const nn::MatrixCodes first = rounding.encode_matrix(x, Operand::input, {.columns = true});
  EXPECT_TRUE(first.magnitude.equal(x.abs().amax().view({1})));
  const auto decode_with = [&](const at::Tensor& magnitude) {
    return rounding.encode_matrix(x, Operand::input, {.rows = true}, {.magnitude = magnitude}).rows.decode;
  };
  EXPECT_TRUE(decode_with(first.magnitude).equal(first.columns.decode));
  EXPECT_TRUE(decode_with(first.magnitude * 2).equal(first.columns.decode * 2));
}

TEST(OperandRounding, PairsNeedWholeBytes) {
  config::Precision precision = recipe("nvfp4");
  precision.fp8_products = config::Fp8Products::library;
  const nn::OperandRounding rounding = make_rounding(precision);
  for (const int64_t columns : {31, 40}) {
    const std::string error = catch_error([&] {
      rounding.encode(at::ones({32, columns}), Operand::input, SumOver::columns);
    });
    EXPECT_NE(error.find("l multiplies matrices with a dimension of " + std::to_string(columns) +
                         ", but the library needs multiples of 32; change the widths"),
              std::string::npos)
        << error;
  }
}

// Shapes without values, as in a plan: every operand and recipe of the library's products.
TEST(OperandRounding, ProductsOfCodesHaveShapesWithoutValues) {
  device::Target target;
  target.meta = true;
  for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const auto codes = [&](int64_t rows, int64_t columns) {
      return nn::Codes{at::empty({rows, columns}, at::TensorOptions().device(at::kMeta).dtype(type)),
                       at::empty({1}, at::TensorOptions().device(at::kMeta))};
    };
    const at::Tensor y = nn::scaled_product(target, codes(24, 48), codes(80, 48), at::kBFloat16, "l");
    EXPECT_EQ(y.sizes(), at::IntArrayRef({24, 80}));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_EQ(nn::transpose(target, codes(24, 48)).codes.sizes(), at::IntArrayRef({48, 24}));
    const std::string error =
        catch_error([&] { nn::scaled_product(target, codes(24, 40), codes(80, 40), at::kFloat, "l"); });
    EXPECT_NE(error.find("l multiplies matrices with a dimension of 40"), std::string::npos) << error;
  }
}

// Each value has at most three significant bits, and blocks span a factor below 2^8: every format represents them
// exactly, with any power of two as the factor, so the products are those without rounding.
TEST(OperandRounding, RepresentableValuesAreUnchanged) {
  const auto simple = [](std::vector<int64_t> sizes, int64_t seed) {
    const at::Tensor index = at::arange(topology::numel(sizes), at::kLong) * 7 + seed;
    const at::Tensor mantissa = index.remainder(4) + 4, sign = index.remainder(3) - 1;
    return (mantissa * sign).to(at::kDouble).mul(at::exp2(index.remainder(5).to(at::kDouble))).view(sizes);
  };
  const at::Tensor x = simple({20, 2, 48}, 1), weight = simple({40, 48}, 2), dy = simple({20, 2, 40}, 3);
  const Results plain = run({}, at::kDouble, x, weight, dy);
  for (const char* const name : {"blockwise", "mxfp8"}) {
    const Results got = run(recipe(name), at::kDouble, x, weight, dy);
    EXPECT_TRUE(got.y.equal(plain.y)) << name;
    EXPECT_TRUE(got.dx.equal(plain.dx)) << name;
    EXPECT_TRUE(got.dw.equal(plain.dw)) << name;
  }
}

// Blocks run along the sum: a large value flushes the small values that share its block to 0, and no others.
TEST(OperandRounding, BlocksRunAlongTheSum) {
  const auto zeros_of = [](const std::string& name, Operand operand, SumOver sum) {
    // The factors of NVFP4's blocks cover a smaller range.
    at::Tensor x = at::full({64, 64}, name == "nvfp4" ? 0x1p-6 : 0x1p-40, at::kDouble);
    x[3][5] = 1;
    const at::Tensor rounded = make_rounding(recipe(name)).round(x, operand, sum);
    const at::Tensor rows = rounded.eq(0).sum(1), columns = rounded.eq(0).sum(0);
    return std::pair(rows[3].item<int64_t>(), columns[5].item<int64_t>());
  };
  for (const Operand operand : {Operand::input, Operand::weight, Operand::gradient}) {
    EXPECT_EQ(zeros_of("mxfp8", operand, SumOver::columns), std::pair(int64_t{31}, int64_t{0}));
    EXPECT_EQ(zeros_of("mxfp8", operand, SumOver::rows), std::pair(int64_t{0}, int64_t{31}));
  }
  for (const SumOver sum : {SumOver::columns, SumOver::rows}) {
    const bool columns = sum == SumOver::columns;
    EXPECT_EQ(zeros_of("blockwise", Operand::input, sum),
              std::pair(int64_t{columns ? 63 : 0}, int64_t{columns ? 0 : 63}));
    EXPECT_EQ(zeros_of("blockwise", Operand::weight, sum), std::pair(int64_t{63}, int64_t{63}));
    EXPECT_EQ(zeros_of("nvfp4", Operand::weight, sum), std::pair(int64_t{15}, int64_t{15}));
    EXPECT_EQ(zeros_of("tensorwise", Operand::input, sum), std::pair(int64_t{63}, int64_t{63}));
  }
}

// The other operands of the three products are rounded as before.
TEST(OperandRounding, WeightGradientsStayUnrounded) {
  const at::Tensor x = sample({20, 2, 48}, 1, at::kDouble), weight = sample({40, 48}, 2, at::kDouble),
                   dy = sample({20, 2, 40}, 3, at::kDouble);
  const Results plain = run({}, at::kDouble, x, weight, dy);
  for (const char* const name : {"mxfp8", "nvfp4"}) {
    config::Precision precision = recipe(name);
    const Results rounded = run(precision, at::kDouble, x, weight, dy);
    precision.fp8_wgrad = false;
    const Results got = run(precision, at::kDouble, x, weight, dy);
    EXPECT_TRUE(got.dw.equal(plain.dw)) << name;
    EXPECT_FALSE(rounded.dw.equal(plain.dw)) << name;
    EXPECT_TRUE(got.y.equal(rounded.y) && got.dx.equal(rounded.dx)) << name;
    EXPECT_FALSE(got.y.equal(plain.y) || got.dx.equal(plain.dx)) << name;
  }
}

// Each value is off by at most a quarter (E2M1 and its factor), so products of independent values are off by less
// than half of their size. If one operand alone were rotated, the error would be the square root of two.
TEST(OperandRounding, RotatedOperandsHaveTheSameProducts) {
  const at::Tensor x = sample({32, 2, 48}, 1, at::kDouble), weight = sample({40, 48}, 2, at::kDouble),
                   dy = sample({32, 2, 40}, 3, at::kDouble);
  const at::Tensor plain = run({}, at::kDouble, x, weight, dy).dw,
                   got = run(recipe("nvfp4"), at::kDouble, x, weight, dy).dw;
  EXPECT_LT((got - plain).norm().item<double>(), 0.5 * plain.norm().item<double>());
}

// A value in the middle between two codes becomes either, with random numbers that depend on its location, on the
// microbatch and on the product.
TEST(OperandRounding, GradientsAreRoundedAtRandom) {
  config::Precision precision = recipe("nvfp4");
  precision.fp4_stochastic_rounding = true;
  precision.fp4_hadamard = false;
  nn::OperandRounding rounding = make_rounding(precision);
  rounding.set_gradient_columns(64, {});
  at::Tensor x = at::full({64, 64}, 5, at::kDouble);  // between the codes of 4 and 6 if the largest is 6
  for (int64_t block = 0; block < 64; block += 16) x.select(1, block).fill_(6), x[block].fill_(6);
  // Whether each of the 60 x 60 values was rounded up.
  const auto round = [&](SumOver sum, int64_t counter, int64_t first_row) {
    const at::Tensor number = at::full({1}, counter, at::kLong);
    const at::Tensor y =
        rounding.round(x, Operand::gradient, sum, {.positions = rounding.positions(64, first_row, number)});
    const at::Tensor inner = y.view({4, 16, 4, 16}).narrow(1, 1, 15).narrow(3, 1, 15), up = inner.gt(5);
    const at::Tensor code = up.to(at::kDouble).mul(2).add(4);
    EXPECT_LE((inner - code).abs().max().item<double>(), 0x1p-50);  // the factor is a quotient
    return up.clone();
  };
  const at::Tensor up = round(SumOver::columns, 1, 0);
  EXPECT_NEAR(up.sum().item<double>(), 1800, 6 * 30);  // six standard deviations of 3,600 tosses
  EXPECT_FALSE(up.select(1, 0).equal(up.select(1, 1)));
  EXPECT_FALSE(up.select(3, 0).equal(up.select(3, 1)));
  EXPECT_TRUE(round(SumOver::columns, 1, 0).equal(up));
  EXPECT_FALSE(round(SumOver::columns, 2, 0).equal(up));
  EXPECT_FALSE(round(SumOver::rows, 1, 0).equal(up));
  EXPECT_TRUE(round(SumOver::columns, 1, 16).narrow(0, 0, 3).equal(up.narrow(0, 1, 3)));
}

// hybrid rounds gradients to e5m2, which has two fraction bits, all other operands to e4m3 with three.
TEST(OperandRounding, FormatsFollowTheOperand) {
  const at::Tensor x = at::tensor({1.0, 1.125, 448.0}, at::kDouble).view({1, 3});
  for (const char* const format : {"hybrid", "e4m3"}) {
    const nn::OperandRounding rounding = make_rounding(recipe("tensorwise", format));
    for (const Operand operand : {Operand::input, Operand::weight, Operand::gradient}) {
      const bool coarse = operand == Operand::gradient && format == std::string("hybrid");
      EXPECT_EQ(rounding.round(x, operand, SumOver::columns).select(1, 1).item<double>(), coarse ? 1.0 : 1.125);
    }
  }
}

// Steps with the largest magnitudes 8, 2, none, 4: their factors are used in the steps after them.
// `encodes`: by codes of both products instead of rounded values.
void expect_history(const char* algorithm, int64_t length, double margin, const std::vector<double>& used,
                    bool encodes = false) {
  config::Precision precision = recipe("delayed");
  precision.fp8_amax_history_len = length;
  precision.fp8_margin = static_cast<int64_t>(margin);
  precision.fp8_amax_compute_algo = config::Choice<config::AmaxComputeAlgo>(algorithm);
  nn::OperandRounding rounding = make_rounding(precision);
  const at::ScalarType type = encodes ? at::kFloat : at::kDouble;
  const auto history = rounding.make_history("l", type, {});
  EXPECT_EQ(history->name, "l.operand_magnitudes");
  const std::vector<double> steps = {8, 2, 0, 4};
  for (size_t i = 0; i < steps.size(); ++i) {
    history->pending.zero_();
    const at::Tensor x = at::tensor({-steps[i], steps[i] / 2}, type).view({1, 2});
    const auto round = [&](const at::Tensor& values, const nn::RoundOptions& options) {
      if (encodes) rounding.encode_matrix(values, Operand::input, {true, true}, options);
      else rounding.round(values, Operand::input, SumOver::columns, options);
    };
    round(x / 2, {.counts = true});
    round(x, {.counts = true});
    round(x / 4, {.counts = true});
    round(x * 64, {});  // does not count
    history->apply(*history);
    EXPECT_EQ(history->data.select(0, 0).select(0, 0).item<double>(), used[i]) << algorithm << " step " << i;
  }
  if (encodes) return;
  const double largest = used.back(), unit = largest / 448;  // larger values saturate
  const at::Tensor y =
      rounding.round(at::tensor({3 * largest, unit}, at::kDouble).view({1, 2}), Operand::input, SumOver::columns);
  EXPECT_NEAR(y.select(1, 0).item<double>(), largest, largest * 0x1p-50);
  EXPECT_NEAR(y.select(1, 1).item<double>(), unit, unit * 0x1p-50);
}

TEST(OperandRounding, DelayedScalesFollowTheHistory) {
  expect_history("most_recent", 1, 0, {8, 2, 2, 4});
  expect_history("most_recent", 3, 0, {8, 2, 2, 4});
  expect_history("max", 1, 0, {8, 2, 2, 4});
  expect_history("max", 2, 0, {8, 8, 2, 4});
  expect_history("max", 3, 0, {8, 8, 8, 4});
  expect_history("max", 3, 2, {32, 32, 32, 16});
  expect_history("max", 2, 0, {8, 8, 2, 4}, true);
}

}  // namespace
}  // namespace metroplex::test::operand_rounding_test

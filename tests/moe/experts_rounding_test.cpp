// The products of experts in low precision against their definition, expert by expert in float64. The experts have
// uneven numbers of rows; one has none, and no number is a multiple of a block.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "moe/experts.h"
#include "nn/tools.h"
#include "nn/wide.h"
#include "support/error_of.h"

namespace metroplex::experts_rounding_test {
namespace {

using nn::Operand;
using nn::SumOver;

constexpr int64_t kHidden = 160, kWidth = 144;
const std::vector<int64_t> kRows = {37, 0, 150, 1, 20};
constexpr int64_t kValid = 208, kPadding = 9;

struct Recipe {
  std::string name;
  bool hybrid = false, library = false;
};

config::Precision precision_keys(const Recipe& recipe) {
  config::Precision precision;
  if (recipe.name == "nvfp4") {
    precision.fp4_format = config::Fp4Format::e2m1;
    precision.fp4_stochastic_rounding = false;
    return precision;
  }
  precision.fp8_format = recipe.hybrid ? config::Fp8Format::hybrid : config::Fp8Format::e4m3;
  precision.fp8_recipe = config::Choice<config::Fp8Recipe>(recipe.name);
  if (recipe.library) {
    precision.fp8_products = config::Fp8Products::library;
    precision.params_dtype = config::ParamsDtype::bf16;
  }
  return precision;
}

// A floating-point format: its largest value, its smallest normal exponent, its number of fraction bits.
struct Format {
  double largest, least_exponent, fraction_bits;
};
constexpr Format kE4m3{448, -6, 3}, kE5m2{57344, -14, 2}, kE2m1{6, 0, 1};

// Rounds to nearest even and saturates.
at::Tensor round_to(const Format& format, const at::Tensor& x) {
  const at::Tensor exponent = at::floor(at::log2(x.abs().clamp_min(1e-300))).clamp_min(format.least_exponent),
                   step = at::exp2(exponent - format.fraction_bits);
  return (at::round(x / step) * step).clamp(-format.largest, format.largest);
}

// The factors that the codes of blocks are multiplied by. `magnitudes`: of the blocks; `of_group`: of all their
// values.
at::Tensor decode_factors(const Recipe& recipe, const Format& format, const at::Tensor& magnitudes, double of_group) {
  if (recipe.name == "nvfp4") {
    const double group = kE4m3.largest * format.largest / of_group;
    return round_to(kE4m3, magnitudes / format.largest * group) / group;
  }
  const at::Tensor factors = magnitudes / format.largest;
  return recipe.name == "blockwise" || recipe.name == "mxfp8" ? at::exp2(at::ceil(at::log2(factors))) : factors;
}

// x [rows, columns] -> [row blocks, rows of a block, column blocks, columns of a block], with zeros at the ends.
at::Tensor split_blocks(const at::Tensor& x, int64_t height, int64_t width) {
  const int64_t rows = (x.size(0) + height - 1) / height, columns = (x.size(1) + width - 1) / width;
  at::Tensor out = at::zeros({rows * height, columns * width}, at::kDouble);
  out.narrow(0, 0, x.size(0)).narrow(1, 0, x.size(1)).copy_(x);
  return out.view({rows, height, columns, width});
}

// H diag(signs) / 4 of kernels::rotate_rows, for whole blocks of 16 rows.
at::Tensor rotate(const at::Tensor& x) {
  constexpr int64_t kSize = kernels::kHadamardRows;
  at::Tensor matrix = at::empty({kSize, kSize}, at::kDouble), out = x.clone();
  for (unsigned i = 0; i < kSize; ++i)
    for (unsigned j = 0; j < kSize; ++j)
      matrix[i][j] = kernels::hadamard_factor(j) * (std::popcount(i & j) % 2 == 0 ? 1 : -1);
  for (int64_t row = 0; row + kSize <= x.size(0); row += kSize)
    out.narrow(0, row, kSize).copy_(matrix.mm(x.narrow(0, row, kSize)));
  return out;
}

// The rows, or the weight, of one expert as an operand. `delayed`: the magnitude of earlier steps.
struct Rounding {
  Recipe recipe;
  double delayed;
  at::ScalarType type;

  at::Tensor operator()(const at::Tensor& given, Operand operand, SumOver sum) const {
    if (given.numel() == 0 || recipe.name == "none") return given;
    const bool fp4 = recipe.name == "nvfp4", weight = operand == Operand::weight;
    const Format format = fp4 ? kE2m1 : recipe.hybrid && operand == Operand::gradient ? kE5m2 : kE4m3;
    const at::Tensor x = fp4 && !weight && sum == SumOver::rows ? rotate(given).to(type).to(at::kDouble) : given;
    const int64_t size = fp4                          ? 16
                         : recipe.name == "mxfp8"     ? 32
                         : recipe.name == "blockwise" ? 128
                                                      : std::max(x.size(0), x.size(1));
    const bool square = size > 128 || (weight && size != 32);
    const at::Tensor blocks =
        split_blocks(x, square || sum == SumOver::rows ? size : 1, square || sum == SumOver::columns ? size : 1);
    const at::Tensor magnitudes = blocks.abs().amax({1, 3}, true);
    const at::Tensor decode =
        decode_factors(recipe, format, recipe.name == "delayed" ? at::full_like(magnitudes, delayed) : magnitudes,
                       x.abs().max().item<double>());
    const at::Tensor rounded = at::where(decode.eq(0), 0, round_to(format, blocks / decode) * decode);
    return rounded.reshape({blocks.size(0) * blocks.size(1), -1}).narrow(0, 0, x.size(0)).narrow(1, 0, x.size(1));
  }
};

struct Input {
  at::Tensor x, probs, dy;
};

Input make_input(at::ScalarType type) {
  const int64_t all = kValid + kPadding;
  Input in{test::sample({all, kHidden}, 1, type), test::sample({all}, 2, nn::acc_type(type)).abs(),
           test::sample({all, kHidden}, 3, type)};
  for (const at::Tensor& x : {in.x, in.probs, in.dy})
    x.narrow(0, kValid, kPadding).fill_(std::numeric_limits<double>::quiet_NaN());
  return in;
}

// A magnitude in the middle of the operands' values, so that some saturate.
constexpr double kDelayed = 0.75;

using Results = std::map<std::string, at::Tensor>;

config::Model make_model(bool grouped, int64_t width = kWidth) {
  config::Model model;
  model.num_moe_experts = static_cast<int64_t>(kRows.size());
  model.hidden_size = kHidden, model.moe_ffn_hidden_size = width;
  model.gated_linear_unit = true, model.activation = config::Activation::silu, model.add_bias_linear = false;
  model.moe_grouped_gemm = grouped;
  return model;
}

// `spread`: the columns of weights differ in magnitude, so that the blocks of a row flush some values to 0.
Results run_layer(const Recipe& recipe, at::ScalarType type, bool grouped, const Input& in, Results& weights,
                  bool spread = false) {
  nn::LayerContext context = test::layer_context({}, false, type);
  context.precision = precision_keys(recipe);
  moe::Experts experts("e", make_model(grouped), context, {});
  std::vector<nn::Param*> params;
  experts.collect_params(params);
  test::give_main_grad(params);
  for (nn::Param* param : params) {
    param->data.copy_(test::sample(param->local_shape, 5, type));
    if (spread) param->data.mul_(at::exp2(at::arange(param->local_shape.back(), type).remainder(25).neg()));
    if (param->operand_history) param->operand_history->data.select(0, 0).fill_(kDelayed);
    weights[param->name] = param->data.to(at::kDouble);
  }
  const at::Tensor x = in.x.clone().requires_grad_(), probs = in.probs.clone().requires_grad_();
  const at::Tensor y = experts.forward({x, probs, at::tensor(kRows, at::kLong)});
  torch::autograd::backward({y}, {in.dy});
  Results results{{"y", y.detach().narrow(0, 0, kValid)},
                  {"dx", x.grad().narrow(0, 0, kValid)},
                  {"dprobs", probs.grad().narrow(0, 0, kValid)}};
  for (const nn::Param* param : params) results[param->name] = param->main_grad;
  return results;
}

// The definition: each product has rounded operands, and a result of `type`.
Results define(const Recipe& recipe, at::ScalarType type, const Input& in, const Results& weights) {
  const Rounding round{recipe, kDelayed, type};
  const auto store = [&](const at::Tensor& x) { return x.to(type).to(at::kDouble); };
  std::map<std::string, std::vector<at::Tensor>> all;
  int64_t first = 0;
  for (size_t expert = 0; expert < kRows.size(); ++expert) {
    const auto rows = [&](const at::Tensor& of) { return of.narrow(0, first, kRows[expert]).to(at::kDouble); };
    const auto weight = [&](const char* name) { return weights.at(name).select(0, static_cast<int64_t>(expert)); };
    const at::Tensor x = rows(in.x), dy = rows(in.dy), fc1 = weight("e.linear_fc1.weight"),
                     fc2 = weight("e.linear_fc2.weight");
    const at::Tensor probs = rows(in.probs).unsqueeze(1).requires_grad_();
    const at::Tensor inner =
        store(round(x, Operand::input, SumOver::columns).mm(round(fc1, Operand::weight, SumOver::columns).t()))
            .requires_grad_();
    const std::vector<at::Tensor> halves = inner.chunk(2, 1);
    const at::Tensor activated = at::silu(halves[0]) * halves[1] * probs, act = store(activated.detach());
    all["y"].push_back(
        round(act, Operand::input, SumOver::columns).mm(round(fc2, Operand::weight, SumOver::columns).t()));
    torch::autograd::backward(
        {activated},
        {store(round(dy, Operand::gradient, SumOver::columns).mm(round(fc2, Operand::weight, SumOver::rows)))});
    const at::Tensor dinner = store(inner.grad());
    all["dprobs"].push_back(probs.grad().squeeze(1));
    all["dx"].push_back(
        round(dinner, Operand::gradient, SumOver::columns).mm(round(fc1, Operand::weight, SumOver::rows)));
    all["e.linear_fc1.weight"].push_back(
        round(dinner, Operand::gradient, SumOver::rows).t().mm(round(x, Operand::input, SumOver::rows)).unsqueeze(0));
    all["e.linear_fc2.weight"].push_back(
        round(dy, Operand::gradient, SumOver::rows).t().mm(round(act, Operand::input, SumOver::rows)).unsqueeze(0));
    first += kRows[expert];
  }
  Results results;
  for (const auto& [name, parts] : all) results[name] = at::cat(parts);
  return results;
}

// float64: sums of at most 320 products in another order, 1e-13 of their size. A value next to a tie becomes another
// code with probability 1e-9 (run/low_precision_ranks_test.cpp). bf16: results round once more, by at most 2^-9 in
// the norm, and one in 2^8 intermediate values is rounded to the other neighbor. The rounding itself changes the
// results by 2^-7 or more.
double bound(at::ScalarType type) { return type == at::kDouble ? 1e-11 : 0x1p-8; }

void expect_definition(const Recipe& recipe, at::ScalarType type) {
  const Input in = make_input(type);
  for (const bool grouped : {true, false}) {
    SCOPED_TRACE(testing::Message() << recipe.name << " " << recipe.hybrid << at::toString(type) << grouped);
    Results weights;
    const Results got = run_layer(recipe, type, grouped, in, weights);
    const Results plain = define({"none"}, type, in, weights);
    for (const auto& [name, expected] : define(recipe, type, in, weights)) {
      const double size = expected.norm().item<double>();
      EXPECT_LT((got.at(name).to(at::kDouble) - expected).norm().item<double>(), bound(type) * size) << name;
      EXPECT_GT((plain.at(name) - expected).norm().item<double>(), 0x1p-7 * size) << name;
    }
  }
}

TEST(ExpertsRounding, EqualsTheDefinition) {
  for (const Recipe& recipe : {Recipe{"delayed", true}, {"tensorwise", true}, {"blockwise"}, {"mxfp8"}, {"nvfp4"}})
    expect_definition(recipe, at::kDouble);
}

// Without nvfp4: its factors are products in fp32, so bf16 values that are ties with exact factors are not.
TEST(ExpertsRounding, EqualsTheDefinitionInBf16) {
  for (const Recipe& recipe : {Recipe{"delayed", true}, {"tensorwise", true}, {"blockwise", true}, {"mxfp8"}})
    expect_definition(recipe, at::kBFloat16);
}

// The product's operands before their rounding, and its results. In rows, those of local experts come first.
struct Product {
  kernels::GroupedOp op;
  at::Tensor left, right, result;
  at::ScalarType type;  // of the operands in the product
};

struct Products final : device::Recorder {
  std::map<const void*, at::Tensor> sources;  // of rounded tensors
  std::vector<Product> products;
  int64_t roundings = 0;
  static at::Tensor join(const at::Tensor& home, const at::Tensor* replicas) {
    return replicas == nullptr ? home : at::cat({home, *replicas});
  }
  void run(device::Operation operation) override {
    operation.run();
    const auto& [reads, writes] = std::tie(operation.reads, operation.writes);
    roundings += operation.name == "round_blocks" ? 1 : 0;
    if (operation.name == "round_blocks") sources[writes[0].const_data_ptr()] = reads[0].clone();
    if (operation.name != "grouped_product") return;
    const auto op = static_cast<kernels::GroupedOp>(std::get<int64_t>(operation.scalars.at(0).value));
    const auto source = [&](size_t i) { return sources.at(reads.at(i).const_data_ptr()); };
    const bool weight = op == kernels::GroupedOp::weight_gradient;
    const at::Tensor replicas = !weight && reads.size() > 3 ? source(3) : at::Tensor();
    products.push_back({op, source(1), join(source(2), replicas.defined() ? &replicas : nullptr),
                        join(writes[0], writes.size() > 1 ? &writes[1] : nullptr).clone(), reads[1].scalar_type()});
  }
};

// Every sum of n products rounds n times, by 2^-24 of the sum of magnitudes. So do both rounded operands, the product
// of their factors, and its product with the sum. bf16 results round once more, by 2^-8 of the result.
void expect_sums(const at::Tensor& got, const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor want = left.mm(right), sizes = left.abs().mm(right.abs());
  const double result = got.scalar_type() == at::kBFloat16 ? 0x1p-8 : 0;
  const at::Tensor bound = sizes * (static_cast<double>(left.size(1) + 4) * 0x1p-24) + want.abs() * result;
  EXPECT_LE(((got.to(at::kDouble) - want).abs() - bound).max().item<double>(), 0);
}

// `rounding`: as of the product's layer.
void expect_product(const nn::OperandRounding& rounding, const Product& product) {
  const auto count = static_cast<int64_t>(kRows.size());
  const bool forward = product.op == kernels::GroupedOp::forward,
             weight = product.op == kernels::GroupedOp::weight_gradient;
  const auto round = [&](const at::Tensor& x, Operand operand) {
    const at::Tensor counts = operand == Operand::weight ? at::Tensor() : at::tensor(kRows, at::kLong);
    return rounding.round(x, operand, SumOver::columns, {.groups = {count, counts}}).to(at::kDouble);
  };
  const at::Tensor left = round(product.left, forward ? Operand::input : Operand::gradient),
                   right = round(product.right, weight ? Operand::input : Operand::weight);
  int64_t first = 0;
  for (int64_t expert = 0; expert < count; ++expert) {
    SCOPED_TRACE(testing::Message() << "product " << static_cast<int>(product.op) << " expert " << expert);
    const int64_t own = kRows[static_cast<size_t>(expert)];
    const at::Tensor rows = left.narrow(0, first, own);
    if (weight) {
      expect_sums(product.result.select(0, expert), rows.t(), right.narrow(0, first, own));
    } else if (own > 0) {
      const at::Tensor matrix = right.view({count, -1, right.size(-1)}).select(0, expert);
      expect_sums(product.result.narrow(0, first, own), rows, forward ? matrix.t() : matrix);
    }
    first += own;
  }
}

at::Tensor gradient_magnitudes(const nn::Buffer& history) {
  return history.pending.select(0, static_cast<int64_t>(Operand::gradient));
}
void expect_gradient_magnitudes(const nn::Buffer& history, const at::Tensor& dy) {
  int64_t first = 0;
  for (size_t expert = 0; expert < kRows.size(); ++expert) {
    const at::Tensor rows = dy.narrow(0, first, kRows[expert]).abs();
    const double want = kRows[expert] > 0 ? rows.max().item<double>() : 0;
    EXPECT_EQ(gradient_magnitudes(history)[static_cast<int64_t>(expert)].item<double>(), want) << expert;
    first += kRows[expert];
  }
}

// `slots`: the last experts are replicas.
void expect_products(const Recipe& recipe, int64_t slots) {
  SCOPED_TRACE(testing::Message() << recipe.name << " " << recipe.hybrid << " " << slots);
  Products seen;
  nn::LayerContext context = test::layer_context({}, false, at::kBFloat16);
  context.precision = precision_keys(recipe);
  const auto count = static_cast<int64_t>(kRows.size());
  nn::OperandRounding rounding(context, "e", {});
  if (const auto history = rounding.make_history("e", at::kBFloat16, {}, count))
    history->data.select(0, 0).fill_(kDelayed);
  context.target.recorder = &seen;
  moe::ExpertContext at;
  at.slots = slots;
  config::Model model = make_model(true);
  model.num_moe_experts = count - slots;
  moe::Experts experts("e", model, context, at);
  std::vector<nn::Param*> params;
  experts.collect_params(params);
  test::give_main_grad(params);
  for (nn::Param* param : params) {
    param->data.copy_(test::sample(param->local_shape, 5, at::kBFloat16));
    param->data.mul_(at::arange(1, param->local_shape[0] + 1, at::kBFloat16).view({-1, 1, 1}));
    if (param->operand_history) param->operand_history->data.select(0, 0).fill_(kDelayed);
  }
  moe::Replicas replicas;
  replicas.bring_home = [](nn::Param&, const at::Tensor&) {};
  if (slots > 0) {
    replicas.weights.fc1 = test::sample({slots, 2 * kWidth, kHidden}, 6, at::kBFloat16).mul(8);
    replicas.weights.fc2 = test::sample({slots, kHidden, kWidth}, 7, at::kBFloat16).mul(16);
  }
  const Input in = make_input(at::kBFloat16);
  const at::Tensor x = in.x.clone().requires_grad_(), probs = in.probs.clone().requires_grad_();
  const at::Tensor y = experts.forward({x, probs, at::tensor(kRows, at::kLong)}, replicas);
  torch::autograd::backward({y}, {in.dy});
  ASSERT_EQ(seen.products.size(), 6U);
  // Four operands in forward. In backward both output gradients once, both inputs, both weights; replicas each time.
  EXPECT_EQ(seen.roundings, 10 + (slots > 0 ? 4 : 0));
  if (recipe.name == "delayed") {
    expect_gradient_magnitudes(*params[1]->operand_history, in.dy);
    EXPECT_TRUE(gradient_magnitudes(*params[0]->operand_history).gt(0).equal(at::tensor(kRows, at::kLong).gt(0)));
  }
  for (const Product& product : seen.products) {
    EXPECT_EQ(product.type, at::kBFloat16);
    expect_product(rounding, product);
  }
}

TEST(ExpertsRounding, ProductsOfBf16CodesSumInFp32) {
  for (const char* const name : {"delayed", "tensorwise"})
    for (const bool hybrid : {false, true}) expect_products({name, hybrid}, 0);
  for (const bool hybrid : {false, true}) expect_products({"tensorwise", hybrid}, 2);
}

// CPUs multiply the values of codes, which are the rounded values, or with one factor and grouped GEMM codes in bf16.
TEST(ExpertsRounding, CodesHaveTheSameProducts) {
  for (const bool grouped : {true, false}) {
    for (const Recipe& recipe :
         {Recipe{"delayed"}, {"tensorwise", true}, {"tensorwise"}, {"mxfp8"}, {"mxfp8", true}}) {
      const Input in = make_input(at::kBFloat16);
      Results weights;
      const Results widened = run_layer(recipe, at::kBFloat16, grouped, in, weights, true),
                    codes = run_layer({recipe.name, recipe.hybrid, true}, at::kBFloat16, grouped, in, weights, true);
      for (const auto& [name, expected] : widened) EXPECT_TRUE(codes.at(name).equal(expected)) << name;
    }
  }
}

struct ProductNames final : device::Recorder {
  std::vector<std::string> names;
  void run(device::Operation operation) override {
    operation.run();
    if (operation.name == "grouped_product")
      names.push_back(operation.name + " of " + at::toString(operation.reads.at(1).scalar_type()));
  }
  void issued(const device::Operation& product) override { names.push_back(product.name); }
};

struct GpuCase {
  int capability;
  Recipe recipe;
  config::ParamsDtype dtype = config::ParamsDtype::bf16;
  int64_t width = kWidth;
};

// Numbers of libtorch's products of codes and of our products in bf16, in a step without values.
std::pair<int64_t, int64_t> count_code_products(const GpuCase& given) {
  ProductNames seen;
  nn::LayerContext context = test::layer_context({}, false, at::kBFloat16);
  context.precision = precision_keys(given.recipe);
  context.precision.params_dtype = given.dtype;
  context.target.device = at::Device(at::kCUDA, 0);
  context.target.meta = true, context.target.meta_capability = given.capability;
  context.target.recorder = &seen;
  moe::Experts experts("e", make_model(true, given.width), context, {});
  std::vector<nn::Param*> params;
  experts.collect_params(params);
  const auto meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  for (nn::Param* param : params) param->main_grad = at::empty(param->local_shape, meta.dtype(at::kFloat));
  const at::Tensor x = at::empty({kValid, kHidden}, meta).requires_grad_(),
                   probs = at::empty({kValid}, meta.dtype(at::kFloat)).requires_grad_();
  const int64_t count = static_cast<int64_t>(kRows.size());
  const at::Tensor y = experts.forward({x, probs, at::empty({count}, meta.dtype(at::kLong))});
  EXPECT_EQ(y.sizes(), x.sizes());
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  torch::autograd::backward({y}, {at::empty_like(y)});
  const auto count_of = [&](const char* name) { return std::count(seen.names.begin(), seen.names.end(), name); };
  return {count_of("scaled_grouped_mm"), count_of("grouped_product of BFloat16")};
}

// In bf16, both products of rows with e4m3, and the forward ones with hybrid. Our kernel multiplies other codes with
// one factor.
TEST(ExpertsRounding, GpusMultiplyCodes) {
  const Recipe tensor{"tensorwise", false, true}, mx{"mxfp8", false, true};
  using Counts = std::pair<int64_t, int64_t>;
  EXPECT_EQ(count_code_products({90, tensor}), Counts(4, 2));
  EXPECT_EQ(count_code_products({90, {"tensorwise", true, true}}), Counts(2, 4));
  EXPECT_EQ(count_code_products({90, {"delayed", true}}), Counts(0, 6));
  EXPECT_EQ(count_code_products({90, tensor, config::ParamsDtype::fp32}), Counts(0, 6));
  EXPECT_EQ(count_code_products({100, tensor}), Counts(0, 6));
  EXPECT_EQ(count_code_products({100, mx, config::ParamsDtype::bf16, 160}).first, 4);
  EXPECT_EQ(count_code_products({100, {"mxfp8", true, true}, config::ParamsDtype::bf16, 160}).first, 2);
  EXPECT_EQ(count_code_products({103, mx}).first, 0);
  const std::string error = test::catch_error([&] { count_code_products({100, mx}); });
  EXPECT_NE(
      error.find(
          "e.linear_fc2.weight multiplies matrices with a dimension of 144, but the library needs multiples of 32"),
      std::string::npos)
      << error;
}

// The blocks of a matrix must not end in the next one.
TEST(ExpertsRounding, BlocksOfStackedWeightsNeedWholeMatrices) {
  nn::LayerContext context = test::layer_context({}, false, at::kBFloat16);
  context.precision = precision_keys({"mxfp8", false, true});
  const nn::OperandRounding rounding{context, "l", {}};
  const std::string error = test::catch_error([&] {
    rounding.encode(at::ones({2, 48, 64}), Operand::weight, SumOver::rows, {.groups = {2, {}}});
  });
  EXPECT_NE(error.find("l multiplies matrices with a dimension of 48, but the library needs multiples of 32"),
            std::string::npos)
      << error;
}

}  // namespace
}  // namespace metroplex::experts_rounding_test

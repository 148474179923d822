#include "moe/grouped_product.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/grouped_choice.h"
#include "moe/grouped_library.h"
#include "nn/wide.h"

namespace metroplex::grouped_product_test {
namespace {
using kernels::GroupedOp;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Case {
  std::vector<int64_t> rows;  // per expert
  int64_t padding = 0, in = 0, out = 0;
};

// Blocks and their edges in every dim, experts without rows, rows after the last one.
const std::vector<Case> kCases = {{{3, 0, 17, 1}, 5, 19, 7},   {{0, 0, 0}, 4, 8, 8},       {{0, 64, 0}, 0, 64, 96},
                                  {{33, 530, 2}, 9, 130, 261}, {{1, 1, 1, 1}, 0, 300, 33}, {{40, 5}, 3, 1025, 50}};

struct Data {
  at::Tensor x, dy, weight, gradient, counts;
  std::vector<int64_t> rows;
  at::Tensor left_factors = {}, right_factors = {};
};

at::Tensor with_poison(int64_t valid, int64_t padding, int64_t width, at::ScalarType type) {
  const at::Tensor values = at::randn({valid + padding, width}, at::kDouble).to(type);
  values.narrow(0, valid, padding).fill_(kNan);
  return values;
}

Data make_data(const Case& test_case, at::ScalarType type, at::ScalarType gradient) {
  int64_t valid = 0;
  for (const int64_t rows : test_case.rows) valid += rows;
  const auto experts = static_cast<int64_t>(test_case.rows.size());
  Data data;
  data.x = with_poison(valid, test_case.padding, test_case.in, type);
  data.dy = with_poison(valid, test_case.padding, test_case.out, type);
  data.weight = at::randn({experts, test_case.out, test_case.in}, at::kDouble).to(type);
  data.gradient = at::randn({experts, test_case.out, test_case.in}, at::kDouble).to(gradient);
  data.counts = at::tensor(test_case.rows, at::kLong);
  data.rows = test_case.rows;
  return data;
}

// For sums of n products of values around 1: each product and partial sum is rounded, signs cancel (sqrt), and the
// result is rounded once to `type`.
double tolerance(int64_t n, at::ScalarType type) {
  const double wide = nn::acc_type(type) == at::kDouble ? 0x1p-53 : 0x1p-24;
  const double own = type == at::kBFloat16 ? 0x1p-8 : type == at::kHalf ? 0x1p-11 : wide;
  const double size = 6 * std::sqrt(static_cast<double>(n) + 1);  // six deviations
  return size * (own + 2 * wide * static_cast<double>(n + 1));
}

void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes().vec(), expected.sizes().vec()) << what;
  if (got.numel() == 0) return;
  const double error = (got.to(at::kDouble) - expected).abs().max().item<double>();
  EXPECT_TRUE(error <= tolerance) << what << ": off by " << error << ", allowed " << tolerance;
}

struct Results {
  at::Tensor y, dx, gradient;
};

void expect_right(const Data& data, const Results& results, const std::string& what) {
  const int64_t in = data.weight.size(2), out = data.weight.size(1);
  int64_t first = 0;
  for (size_t e = 0; e < data.rows.size(); ++e) {
    const int64_t rows = data.rows[e];
    const at::Tensor x = data.x.narrow(0, first, rows).to(at::kDouble),
                     dy = data.dy.narrow(0, first, rows).to(at::kDouble),
                     w = data.weight.select(0, static_cast<int64_t>(e)).to(at::kDouble),
                     g = data.gradient.select(0, static_cast<int64_t>(e)).to(at::kDouble);
    const std::string where = what + ", expert " + std::to_string(e);
    expect_close(results.y.narrow(0, first, rows), at::mm(x, w.t()), tolerance(in, results.y.scalar_type()),
                 where + ", y");
    expect_close(results.dx.narrow(0, first, rows), at::mm(dy, w), tolerance(out, results.dx.scalar_type()),
                 where + ", dx");
    expect_close(results.gradient.select(0, static_cast<int64_t>(e)), g + at::mm(dy.t(), x),
                 tolerance(rows, results.gradient.scalar_type()), where + ", gradient");
    first += rows;
  }
}

Results run(const Data& data) {
  const moe::GroupedProduct product({}, data.counts.numel());
  Results results{at::empty_like(data.dy), at::empty_like(data.x), data.gradient.clone()};
  product.run(GroupedOp::forward, data.x, data.weight, results.y, data.counts);
  product.run(GroupedOp::input_gradient, data.dy, data.weight, results.dx, data.counts);
  product.run(GroupedOp::weight_gradient, data.dy, data.x, results.gradient, data.counts);
  return results;
}

const at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

TEST(GroupedProduct, EqualsOneProductAnExpert) {
  at::manual_seed(1);
  for (const at::ScalarType type : kTypes) {
    for (const Case& test_case : kCases) {
      for (const at::ScalarType gradient : {nn::acc_type(type), type}) {
        const Data data = make_data(test_case, type, gradient);
        expect_right(data, run(data), std::string(at::toString(type)) + " " + std::to_string(test_case.in));
      }
    }
  }
}

// Gradients of replicas overwrite existing values.
struct Replicas {
  at::Tensor weight, gradient;
};
Replicas split_off(Data& data, int64_t slots) {
  const int64_t home = data.weight.size(0) - slots;
  const Replicas replicas{data.weight.narrow(0, home, slots).clone(),
                          at::full_like(data.gradient.narrow(0, home, slots), kNan)};
  data.weight = data.weight.narrow(0, 0, home).clone();
  data.gradient = data.gradient.narrow(0, 0, home).clone();
  return replicas;
}

Data without_gradient(const Data& data, int64_t slots) {
  Data zero = data;
  zero.gradient = data.gradient.clone();
  zero.gradient.narrow(0, data.gradient.size(0) - slots, slots).zero_();
  return zero;
}

TEST(GroupedProduct, ClonesElsewhereHaveTheBitsOfOneStackAndTheirGradientsAreWritten) {
  at::manual_seed(3);
  for (const at::ScalarType type : kTypes) {
    for (const Case& test_case : kCases) {
      for (const at::ScalarType gradient : {nn::acc_type(type), type}) {
        for (const int64_t slots : {1, 2}) {
          if (slots >= static_cast<int64_t>(test_case.rows.size())) continue;
          Data data = make_data(test_case, type, gradient);
          const Results expected = run(without_gradient(data, slots));
          const Replicas replicas = split_off(data, slots);
          const moe::GroupedProduct product({}, data.counts.numel());
          const int64_t valid = data.x.size(0) - test_case.padding;
          const at::Tensor y = at::empty_like(data.dy), dx = at::empty_like(data.x);
          product.run(GroupedOp::forward, data.x, {data.weight, replicas.weight}, y, data.counts);
          product.run(GroupedOp::input_gradient, data.dy, {data.weight, replicas.weight}, dx, data.counts);
          product.run(GroupedOp::weight_gradient, data.dy, data.x, {data.gradient, replicas.gradient}, data.counts);
          EXPECT_TRUE(at::equal(y.narrow(0, 0, valid), expected.y.narrow(0, 0, valid)));
          EXPECT_TRUE(at::equal(dx.narrow(0, 0, valid), expected.dx.narrow(0, 0, valid)));
          EXPECT_TRUE(at::equal(at::cat({data.gradient, replicas.gradient}), expected.gradient))
              << at::toString(type) << " into " << at::toString(gradient) << ", " << test_case.in;
        }
      }
    }
  }
}

template <class T>
Results run_by(const kernels::GroupedChoice& choice, const Data& data, Replicas* replicas = nullptr) {
  const int64_t experts = data.counts.numel(), rows = data.x.size(0), in = data.weight.size(2),
                out = data.weight.size(1);
  Results results{at::empty({rows, out}, data.x.options()), at::empty({rows, in}, data.x.options()),
                  data.gradient.clone()};
  const at::Tensor arguments = at::empty({kernels::kGroupedFields, experts}, at::kLong);
  const auto operand = [](const at::Tensor& x) {
    return kernels::GroupedOperand{x.data_ptr(), x.size(-1), x.dim() == 3 ? x.size(1) * x.size(2) : 0,
                                   static_cast<int64_t>(x.element_size())};
  };
  const auto product = [&](GroupedOp op, const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    kernels::GroupedSource source{operand(a), operand(b), operand(c), experts, rows};
    source.a.factors = nn::elements<float>(data.left_factors);
    source.b.factors = nn::elements<float>(data.right_factors);
    if (replicas != nullptr) {
      source.replicas = replicas->weight.size(0);
      source.b.replicas = replicas->weight.data_ptr();
      source.c.replicas = replicas->gradient.data_ptr();
    }
    kernels::grouped_arguments(data.counts.data_ptr<int64_t>(), source, arguments.data_ptr<int64_t>());
    kernels::grouped_product_by(choice, arguments.data_ptr<int64_t>(), {op, experts, rows, in, out, true});
  };
  product(GroupedOp::forward, data.x, data.weight, results.y);
  product(GroupedOp::input_gradient, data.dy, data.weight, results.dx);
  product(GroupedOp::weight_gradient, data.dy, data.x, results.gradient);
  return results;
}

// A sum of n products rounds n times, and its product with the factor and the addition once each, by the unit of
// `wide` of the sum of magnitudes. The result rounds to its type. The product of two factors is exact
// (make_factors()).
void expect_scaled(const at::Tensor& got, const at::Tensor& left, const at::Tensor& right, double factor,
                   const at::Tensor& start, const std::string& what) {
  const at::Tensor want = left.mm(right) * factor + start,
                   sizes = left.abs().mm(right.abs()) * std::abs(factor) + start.abs();
  const at::ScalarType type = got.scalar_type();
  const double wide = nn::acc_type(type) == at::kDouble ? 0x1p-53 : 0x1p-24, own = type == at::kBFloat16 ? 0x1p-8
                                                                                   : type == at::kHalf   ? 0x1p-11
                                                                                                         : 0;
  const double subnormal = type == at::kHalf ? 0x1p-25 : 0;
  const at::Tensor bound = sizes * (wide * static_cast<double>(left.size(1) + 2)) + want.abs() * own + subnormal;
  if (got.numel() == 0) return;
  EXPECT_LE(((got.to(at::kDouble) - want).abs() - bound).max().item<double>(), 0) << what;
}

void expect_scaled(const Data& data, const Results& results, bool adds, const std::string& what) {
  const auto factor = [](const at::Tensor& factors, int64_t expert) {
    return factors.defined() ? factors[expert].item<double>() : 1;
  };
  int64_t first = 0;
  for (int64_t expert = 0; expert < data.counts.numel(); ++expert) {
    const int64_t rows = data.rows[static_cast<size_t>(expert)];
    const auto part = [&](const at::Tensor& of) { return of.narrow(0, first, rows); };
    const at::Tensor x = part(data.x).to(at::kDouble), dy = part(data.dy).to(at::kDouble),
                     weight = data.weight[expert].to(at::kDouble), gradient = data.gradient[expert].to(at::kDouble);
    const double both = factor(data.left_factors, expert) * factor(data.right_factors, expert);
    const at::Tensor nothing = at::zeros({1, 1}, at::kDouble);
    const std::string where = what + ", expert " + std::to_string(expert);
    expect_scaled(part(results.y), x, weight.t(), both, nothing, where + ", y");
    expect_scaled(part(results.dx), dy, weight, both, nothing, where + ", dx");
    expect_scaled(results.gradient[expert], dy.t(), x, both, adds ? gradient : nothing, where + ", gradient");
    first += rows;
  }
}

// Numbers with 12 significant bits: products of two of them are exact in fp32.
at::Tensor make_factors(int64_t count) {
  return at::floor(at::rand({count}, at::kDouble) * 2048 + 2048).mul(0x1p-11).to(at::kFloat);
}

TEST(GroupedProduct, FactorsMultiplySumsInEveryImplementation) {
  at::manual_seed(4);
  for (const at::ScalarType type : kTypes) {
    nn::dispatch_element(type, [&](auto zero) {
      using T = decltype(zero);
      for (const auto* choice : kernels::grouped_choices(false, kernels::kElementNumber<T>)) {
        for (const Case& test_case : kCases) {
          Data data = make_data(test_case, type, nn::acc_type(type));
          data.left_factors = make_factors(data.counts.numel());
          for (const bool both : {false, true}) {
            if (both) data.right_factors = make_factors(data.counts.numel());
            expect_scaled(data, run_by<T>(*choice, data), true, std::string(at::toString(type)) + choice->name);
          }
        }
      }
    });
  }
}

// Home experts come before replicas, whose gradients are overwritten.
void expect_factors(const Case& test_case, at::ScalarType type, at::ScalarType gradient, int64_t slots, bool adds) {
  Data whole = make_data(test_case, type, gradient);
  const int64_t groups = whole.counts.numel(), home = groups - slots;
  whole.left_factors = make_factors(groups), whole.right_factors = make_factors(groups);
  if (adds) whole.gradient.narrow(0, home, slots).zero_();
  Data own = whole;
  const Replicas replicas = slots > 0 ? split_off(own, slots) : Replicas();
  if (slots == 0) own.gradient = whole.gradient.clone();
  const moe::GroupedProduct product({}, groups);
  const moe::GroupedWeights x(own.x, {}, own.left_factors), dy(own.dy, {}, own.left_factors),
      weights(own.weight, replicas.weight, own.right_factors);
  Results results{product.rows(GroupedOp::forward, x, weights, own.counts),
                  product.rows(GroupedOp::input_gradient, dy, weights, own.counts), own.gradient};
  product.run(GroupedOp::weight_gradient, dy, moe::GroupedWeights(own.x, {}, own.right_factors),
              {own.gradient, replicas.gradient}, own.counts, adds);
  if (slots > 0) results.gradient = at::cat({own.gradient, replicas.gradient});
  expect_scaled(whole, results, adds, std::string(at::toString(type)) + " into " + at::toString(gradient));
}

TEST(GroupedProduct, FactorsBelongToExpertsAndReplicas) {
  at::manual_seed(5);
  for (const at::ScalarType type : kTypes)
    for (const Case& test_case : kCases)
      for (const at::ScalarType gradient : {nn::acc_type(type), type})
        for (const int64_t slots : {0, 1})
          for (const bool adds : {true, false}) expect_factors(test_case, type, gradient, slots, adds);
}

TEST(GroupedProduct, EveryWayThatThisMachineHasIsRight) {
  at::manual_seed(2);
  for (const at::ScalarType type : kTypes) {
    nn::dispatch_element(type, [&](auto zero) {
      using T = decltype(zero);
      const auto choices = kernels::grouped_choices(false, kernels::kElementNumber<T>);
      ASSERT_FALSE(choices.empty());
      EXPECT_EQ(choices.front()->name, moe::product_name({.type = type}));
      for (const kernels::GroupedChoice* choice : choices) {
        for (const Case& test_case : kCases) {
          const Data data = make_data(test_case, type, nn::acc_type(type));
          const Results all = run_by<T>(*choice, data);
          expect_right(data, all, std::string(at::toString(type)) + ", " + choice->name);
          const int64_t slots = data.counts.numel() / 2, valid = data.x.size(0) - test_case.padding;
          const Results zeroed = run_by<T>(*choice, without_gradient(data, slots));
          Data rest = data;
          Replicas replicas = split_off(rest, slots);
          const Results split = run_by<T>(*choice, rest, &replicas);
          EXPECT_TRUE(at::equal(split.y.narrow(0, 0, valid), all.y.narrow(0, 0, valid))) << choice->name;
          EXPECT_TRUE(at::equal(split.dx.narrow(0, 0, valid), all.dx.narrow(0, 0, valid))) << choice->name;
          EXPECT_TRUE(at::equal(at::cat({split.gradient, replicas.gradient}), zeroed.gradient)) << choice->name;
        }
      }
    });
  }
}

}  // namespace
}  // namespace metroplex::grouped_product_test

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
};

at::Tensor with_poison(int64_t valid, int64_t padding, int64_t width, at::ScalarType type) {
  const at::Tensor values = at::randn({valid + padding, width}, at::kDouble).to(type);
  values.narrow(0, valid, padding).fill_(kNan);
  return values;
}

Data make_data(const Case& c, at::ScalarType type, at::ScalarType gradient) {
  int64_t valid = 0;
  for (const int64_t rows : c.rows) valid += rows;
  const auto experts = static_cast<int64_t>(c.rows.size());
  Data d;
  d.x = with_poison(valid, c.padding, c.in, type);
  d.dy = with_poison(valid, c.padding, c.out, type);
  d.weight = at::randn({experts, c.out, c.in}, at::kDouble).to(type);
  d.gradient = at::randn({experts, c.out, c.in}, at::kDouble).to(gradient);
  d.counts = at::tensor(c.rows, at::kLong);
  d.rows = c.rows;
  return d;
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

void expect_right(const Data& d, const Results& r, const std::string& what) {
  const int64_t in = d.weight.size(2), out = d.weight.size(1);
  int64_t first = 0;
  for (size_t e = 0; e < d.rows.size(); ++e) {
    const int64_t rows = d.rows[e];
    const at::Tensor x = d.x.narrow(0, first, rows).to(at::kDouble), dy = d.dy.narrow(0, first, rows).to(at::kDouble),
                     w = d.weight.select(0, static_cast<int64_t>(e)).to(at::kDouble),
                     g = d.gradient.select(0, static_cast<int64_t>(e)).to(at::kDouble);
    const std::string where = what + ", expert " + std::to_string(e);
    expect_close(r.y.narrow(0, first, rows), at::mm(x, w.t()), tolerance(in, r.y.scalar_type()), where + ", y");
    expect_close(r.dx.narrow(0, first, rows), at::mm(dy, w), tolerance(out, r.dx.scalar_type()), where + ", dx");
    expect_close(r.gradient.select(0, static_cast<int64_t>(e)), g + at::mm(dy.t(), x),
                 tolerance(rows, r.gradient.scalar_type()), where + ", gradient");
    first += rows;
  }
}

Results run(const Data& d) {
  const moe::GroupedProduct product({}, d.counts.numel());
  Results r{at::empty_like(d.dy), at::empty_like(d.x), d.gradient.clone()};
  product.run(GroupedOp::forward, d.x, d.weight, r.y, d.counts);
  product.run(GroupedOp::input_gradient, d.dy, d.weight, r.dx, d.counts);
  product.run(GroupedOp::weight_gradient, d.dy, d.x, r.gradient, d.counts);
  return r;
}

const at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

TEST(GroupedProduct, EqualsOneProductAnExpert) {
  at::manual_seed(1);
  for (const at::ScalarType type : kTypes) {
    for (const Case& c : kCases) {
      for (const at::ScalarType gradient : {nn::acc_type(type), type}) {
        const Data d = make_data(c, type, gradient);
        expect_right(d, run(d), std::string(at::toString(type)) + " " + std::to_string(c.in));
      }
    }
  }
}

// Gradients of replicas overwrite existing values.
struct Clones {
  at::Tensor weight, gradient;
};
Clones split_off(Data& d, int64_t slots) {
  const int64_t home = d.weight.size(0) - slots;
  const Clones clones{d.weight.narrow(0, home, slots).clone(),
                      at::full_like(d.gradient.narrow(0, home, slots), kNan)};
  d.weight = d.weight.narrow(0, 0, home).clone();
  d.gradient = d.gradient.narrow(0, 0, home).clone();
  return clones;
}

Data without_gradient(const Data& d, int64_t slots) {
  Data zero = d;
  zero.gradient = d.gradient.clone();
  zero.gradient.narrow(0, d.gradient.size(0) - slots, slots).zero_();
  return zero;
}

TEST(GroupedProduct, ClonesElsewhereHaveTheBitsOfOneStackAndTheirGradientsAreWritten) {
  at::manual_seed(3);
  for (const at::ScalarType type : kTypes) {
    for (const Case& c : kCases) {
      for (const at::ScalarType gradient : {nn::acc_type(type), type}) {
        for (const int64_t slots : {1, 2}) {
          if (slots >= static_cast<int64_t>(c.rows.size())) continue;
          Data d = make_data(c, type, gradient);
          const Results expected = run(without_gradient(d, slots));
          const Clones clones = split_off(d, slots);
          const moe::GroupedProduct product({}, d.counts.numel());
          const int64_t valid = d.x.size(0) - c.padding;
          const at::Tensor y = at::empty_like(d.dy), dx = at::empty_like(d.x);
          product.run(GroupedOp::forward, d.x, {d.weight, clones.weight}, y, d.counts);
          product.run(GroupedOp::input_gradient, d.dy, {d.weight, clones.weight}, dx, d.counts);
          product.run(GroupedOp::weight_gradient, d.dy, d.x, {d.gradient, clones.gradient}, d.counts);
          EXPECT_TRUE(at::equal(y.narrow(0, 0, valid), expected.y.narrow(0, 0, valid)));
          EXPECT_TRUE(at::equal(dx.narrow(0, 0, valid), expected.dx.narrow(0, 0, valid)));
          EXPECT_TRUE(at::equal(at::cat({d.gradient, clones.gradient}), expected.gradient))
              << at::toString(type) << " into " << at::toString(gradient) << ", " << c.in;
        }
      }
    }
  }
}

template <class T>
Results run_by(const kernels::GroupedChoice& choice, const Data& d, Clones* clones = nullptr) {
  const int64_t experts = d.counts.numel(), rows = d.x.size(0), in = d.weight.size(2), out = d.weight.size(1);
  Results r{at::empty({rows, out}, d.x.options()), at::empty({rows, in}, d.x.options()), d.gradient.clone()};
  const at::Tensor arguments = at::empty({kernels::kGroupedFields, experts}, at::kLong);
  const auto operand = [](const at::Tensor& x) {
    return kernels::GroupedOperand{x.data_ptr(), x.size(-1), x.dim() == 3 ? x.size(1) * x.size(2) : 0,
                                   static_cast<int64_t>(x.element_size())};
  };
  const auto product = [&](GroupedOp op, const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    kernels::GroupedSource source{operand(a), operand(b), operand(c), experts, rows};
    if (clones != nullptr) {
      source.clones = clones->weight.size(0);
      source.b.clones = clones->weight.data_ptr();
      source.c.clones = clones->gradient.data_ptr();
    }
    kernels::grouped_arguments(d.counts.data_ptr<int64_t>(), source, arguments.data_ptr<int64_t>());
    kernels::grouped_product_by(choice, arguments.data_ptr<int64_t>(), {op, experts, rows, in, out, true});
  };
  product(GroupedOp::forward, d.x, d.weight, r.y);
  product(GroupedOp::input_gradient, d.dy, d.weight, r.dx);
  product(GroupedOp::weight_gradient, d.dy, d.x, r.gradient);
  return r;
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
        for (const Case& c : kCases) {
          const Data d = make_data(c, type, nn::acc_type(type));
          const Results all = run_by<T>(*choice, d);
          expect_right(d, all, std::string(at::toString(type)) + ", " + choice->name);
          const int64_t slots = d.counts.numel() / 2, valid = d.x.size(0) - c.padding;
          const Results zeroed = run_by<T>(*choice, without_gradient(d, slots));
          Data rest = d;
          Clones clones = split_off(rest, slots);
          const Results split = run_by<T>(*choice, rest, &clones);
          EXPECT_TRUE(at::equal(split.y.narrow(0, 0, valid), all.y.narrow(0, 0, valid))) << choice->name;
          EXPECT_TRUE(at::equal(split.dx.narrow(0, 0, valid), all.dx.narrow(0, 0, valid))) << choice->name;
          EXPECT_TRUE(at::equal(at::cat({split.gradient, clones.gradient}), zeroed.gradient)) << choice->name;
        }
      }
    });
  }
}

}  // namespace
}  // namespace metroplex::grouped_product_test

// The optimizer kernels of the CPU against long double, torch's fused ones, and themselves with other threads and
// other splits.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/optimizer_step.h"
#include "kernels/optimizer_case.h"

namespace metroplex::kernels::test::optimizer_kernels_test {
namespace {

const AdamCase kAdam{1e-2, 0.9, 0.999, 1e-8, 0.1, 0.37, 3};
const SgdCase kSgd{1e-2, 0.9, 0.1, 0.37, false}, kPlainSgd{1e-2, 0, 0.1, 0.37, false},
    kFirstSgd{1e-2, 0.9, 0.1, 0.37, true};
const LionCase kLion{1e-3, 0.9, 0.99, 0.1, 0.37};

void step(const OptimizerRange& range, const AdamCase& test_case, bool updates = true) {
  const Judged judged(test_case, updates);
  adam_step(range, test_case.hyper(), judged.place());
}
void step(const OptimizerRange& range, const SgdCase& test_case, bool updates = true) {
  const Judged judged(test_case, updates);
  sgd_step(range, test_case.hyper(), judged.place());
}
void step(const OptimizerRange& range, const LionCase& test_case, bool updates = true) {
  const Judged judged(test_case, updates);
  lion_step(range, test_case.hyper(), judged.place());
}
int moments(const AdamCase&) { return 2; }
int moments(const SgdCase& hyper) { return hyper.momentum == 0 ? 0 : 1; }
int moments(const LionCase&) { return 1; }

template <class F>
void for_all(const F& f) {
  f(kAdam);
  f(kSgd);
  f(kPlainSgd);
  f(kFirstSgd);
  f(kLion);
}

std::vector<Storage> all_storage() {
  std::vector<Storage> all{{Number::f64, Main::f64, {}, Number::f64, Number::f64}};
  for (const Number grad : {Number::f32, Number::bf16, Number::f16}) {
    for (const Main main : {Main::f32, Main::bf16, Main::split}) {
      for (const auto param :
           {std::optional<Number>(), {Number::f32}, std::optional{Number::bf16}, std::optional{Number::f16}}) {
        if (main == Main::split && param) continue;  // the bf16 parameter is a part of it
        for (const Number first : {Number::f32, Number::bf16, Number::block8}) {
          for (const Number second : {Number::f32, Number::bf16, Number::block8}) {
            for (const bool stochastic : {false, true}) all.push_back({grad, main, param, first, second, stochastic});
          }
        }
      }
    }
  }
  return all;
}

// The written parameter is the stored main parameter rounded, bit for bit.
void expect_param(const Arrays& arrays, const Contents& after) {
  if (!arrays.storage.param) return;
  const at::Tensor right = at::tensor(after.main, at::kDouble).to(at::kFloat).to(to_dtype(*arrays.storage.param));
  EXPECT_TRUE(at::equal(arrays.param.data.slice(0, arrays.param.offset), right)) << arrays.storage.text();
}

template <class Hyper>
void check_step(const Hyper& hyper, const Storage& storage, int64_t n) {
  Arrays arrays(storage, random_contents(n, static_cast<uint32_t>(n)));
  const Contents before = arrays.contents();
  step(arrays.range(), hyper);
  const Contents after = arrays.contents();
  expect_step(hyper, storage, before, after, moments(hyper));
  expect_param(arrays, after);
  EXPECT_EQ(after.grad, before.grad);
  EXPECT_TRUE(moments(hyper) > 1 || after.second == before.second);
  EXPECT_TRUE(moments(hyper) > 0 || after.first == before.first);
}

TEST(OptimizerStep, IsTheFormulaInEveryWayOfStoringThings) {
  for (const Storage& storage : all_storage()) for_all([&](const auto& hyper) { check_step(hyper, storage, 777); });
}

// One storage format for each path through the kernel.
std::vector<Storage> some_storage(int64_t offset) {
  return {{Number::f64, Main::f64, {}, Number::f64, Number::f64, false, offset},
          {Number::f32, Main::f32, {}, Number::f32, Number::f32, false, offset},
          {Number::bf16, Main::f32, Number::bf16, Number::f32, Number::f32, false, offset},
          {Number::bf16, Main::split, {}, Number::bf16, Number::bf16, true, offset},
          {Number::f16, Main::bf16, Number::f16, Number::block8, Number::block8, true, offset}};
}

TEST(OptimizerStep, IsTheFormulaForAnySizeAndStart) {
  for (const int64_t offset : {0, 1, 3}) {
    for (const Storage& storage : some_storage(offset)) {
      for (const int64_t n : {0, 1, 15, 16, 17, 255, 256, 257, 5003})
        for_all([&](const auto& hyper) { check_step(hyper, storage, n); });
    }
  }
  for (const Storage& storage : some_storage(1)) check_step(kAdam, storage, 100003);
}

bool same_bits(const Arrays& a, const Arrays& b) {
  const auto x = a.written(), y = b.written();
  for (size_t i = 0; i < x.size(); ++i) {
    if (!at::equal(x[i].view(at::kByte), y[i].view(at::kByte))) return false;
  }
  return x.size() == y.size();
}

class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

TEST(OptimizerStep, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const Storage& storage : some_storage(1)) {
    for_all([&](const auto& hyper) {
      std::vector<Arrays> results;
      for (const int threads : {1, 2, 3}) {
        const Threads guard(threads);
        results.emplace_back(storage, random_contents(50003, 5));
        step(results.back().range(), hyper);
      }
      EXPECT_TRUE(same_bits(results[0], results[1]) && same_bits(results[0], results[2])) << storage.text();
    });
  }
}

// The sub-range [begin, end) of a range; begin is a multiple of a block if the storage has blocks.
OptimizerRange piece(const OptimizerRange& whole, int64_t begin, int64_t end) {
  OptimizerRange range = whole;
  const auto moved = [&](void* data, Number number) -> void* {
    constexpr int64_t kBytes[] = {8, 4, 2, 2, 1};  // of f64, f32, bf16, f16, block8
    return data == nullptr ? nullptr : static_cast<char*>(data) + begin * kBytes[static_cast<int>(number)];
  };
  range.n = end - begin;
  range.grad = moved(const_cast<void*>(whole.grad), whole.grad_number);
  range.main = moved(whole.main, whole.main_number);
  range.param = moved(whole.param, whole.param_number);
  if (whole.remainder != nullptr) range.remainder = whole.remainder + begin;
  for (MomentArray OptimizerRange::*moment : {&OptimizerRange::first, &OptimizerRange::second}) {
    (range.*moment).data = moved((whole.*moment).data, (whole.*moment).number);
    if ((whole.*moment).scales != nullptr) (range.*moment).scales = (whole.*moment).scales + begin / kBlock8;
  }
  range.noise_start = whole.noise_start + begin;
  return range;
}

TEST(OptimizerStep, TouchesNothingOfAStepThatIsHeldBack) {
  for (const Storage& storage : some_storage(1)) {
    for_all([&](const auto& hyper) {
      const Arrays start(storage, random_contents(777, 5));
      Arrays held = start.to(at::kCPU), taken = start.to(at::kCPU);
      step(held.range(), hyper, false);
      step(taken.range(), hyper);
      EXPECT_TRUE(same_bits(held, start)) << storage.text();
      EXPECT_FALSE(same_bits(taken, start)) << storage.text();
    });
  }
}

// The update number seeds the rounding of low-bit storage; for the first update the seed is the key itself.
TEST(OptimizerStep, EveryUpdateDrawsItsOwnNoise) {
  EXPECT_EQ(step_key(12345, 1), 12345u);
  EXPECT_EQ(step_key(12345, 4), 12345u ^ (uint64_t{3} << 32));
  const Storage storage{Number::f32, Main::bf16, {}, Number::bf16, Number::bf16, true};
  std::vector<Arrays> results;
  for (const int64_t number : {7, 7, 8}) {
    results.emplace_back(storage, random_contents(5000, 6));
    LionCase test_case = kLion;
    test_case.step = number;
    step(results.back().range(), test_case);
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
  EXPECT_FALSE(same_bits(results[0], results[2]));
}

// A number midway between two of bf16 is rounded up or down by its noise, which differs for main parameters and
// moments. They agree in half of the elements, a binomial number of 4096 with a deviation of 32; five of these.
TEST(OptimizerStep, MainParametersAndMomentsDrawDifferentNoise) {
  const size_t n = 4096;
  const double midway = 1 + 0x1p-8;
  Arrays arrays({Number::f32, Main::bf16, {}, Number::bf16, Number::bf16, true},
                {Values(n, midway), Values(n, 0.0), Values(n, 0.0), Values(n, 0.0)});
  step(arrays.range(), SgdCase{1, 0.9, 0, 1, true});  // the moment is the gradient, the parameter minus the moment
  const Contents after = arrays.contents();
  int64_t up = 0, alike = 0;
  for (size_t i = 0; i < n; ++i) {
    up += after.first[i] > midway;
    alike += (after.first[i] > midway) == (after.main[i] < -midway);
  }
  EXPECT_NEAR(up, 2048, 160);
  EXPECT_NEAR(alike, 2048, 160);
}

TEST(OptimizerStep, GivesTheSameBitsInAnyPieces) {
  for (const Storage& storage : some_storage(0)) {
    const bool blocks = storage.first == Number::block8;
    for_all([&](const auto& hyper) {
      Arrays whole(storage, random_contents(5000, 6)), pieces(storage, random_contents(5000, 6));
      step(whole.range(), hyper);
      const std::vector<int64_t> cuts = blocks ? std::vector<int64_t>{0, 256, 1024, 5000}
                                               : std::vector<int64_t>{0, 1, 14, 300, 301, 1333, 4991, 5000};
      for (size_t i = 1; i < cuts.size(); ++i) step(piece(pieces.range(), cuts[i - 1], cuts[i]), hyper);
      EXPECT_TRUE(same_bits(whole, pieces)) << storage.text();
    });
  }
}

// Many steps in float64 against torch's fused kernels. Each step may add a few roundings of 1e-16; 200 of them, and
// their effect on later steps, are below 1e-13 of the largest parameter.
TEST(OptimizerStep, ManyStepsInFloat64AreTorchsFusedOnes) {
  const int64_t n = 1001;
  for (const bool adam : {true, false}) {
    Arrays ours({Number::f64, Main::f64, {}, Number::f64, Number::f64}, random_contents(n, 8));
    ours.first.data.zero_();
    ours.second.data.zero_();
    const at::Tensor p = ours.main.data.clone(), m = at::zeros({n}, at::kDouble), v = at::zeros({n}, at::kDouble),
                     count = at::zeros({}, at::kFloat);
    for (int64_t t = 1; t <= 200; ++t) {
      ours.grad.data.copy_(at::arange(n, at::kDouble).mul(0.37 * static_cast<double>(t)).sin().mul(ours.main.data));
      const double lr = 1e-3 * static_cast<double>(t % 7);
      if (adam) {
        step(ours.range(), AdamCase{lr, 0.9, 0.99, 1e-8, 0.1, 1.0, t});
        at::_fused_adamw_({p}, {ours.grad.data}, {m}, {v}, {}, {count.fill_(t)}, lr, 0.9, 0.99, 0.1, 1e-8, false,
                          false);
      } else {
        step(ours.range(), SgdCase{lr, 0.9, 0.1, 1.0, t == 1});
        at::_fused_sgd_({p}, {ours.grad.data}, {m}, 0.1, 0.9, lr, 0.0, false, false, t == 1);
      }
    }
    EXPECT_LT((ours.main.data - p).abs().max().item<double>(), 1e-13 * p.abs().max().item<double>()) << adam;
    EXPECT_LT((ours.first.data - m).abs().max().item<double>(), 1e-13 * m.abs().max().item<double>()) << adam;
  }
}

// A second moment that only decays: v = 0.999^1000 = 0.368 is right. With rounding to nearest it never decays.
TEST(OptimizerStep, ASecondMomentInFewBitsFallsAsItShouldOnlyWithStochasticRounding) {
  for (const Number second : {Number::bf16, Number::block8}) {
    for (const bool stochastic : {false, true}) {
      const int64_t n = 4096;
      const Contents contents{Values(n, 0.0), Values(n, 0.0), Values(n, 0.0), Values(n, 1.0)};
      Arrays arrays({Number::f32, Main::f32, {}, Number::f32, second, stochastic}, contents);
      for (int64_t t = 1; t <= 1000; ++t) {
        OptimizerRange range = arrays.range();
        range.noise_key = static_cast<uint64_t>(t);
        step(range, AdamCase{0, 0.9, 0.999, 1e-8, 0, 1, t});
      }
      double mean = 0;
      for (const double v : arrays.contents().second) mean += v / static_cast<double>(n);
      // Steps of 1/8 occur with probability 0.008: the deviation of one element is at most 0.25 of its value, that of
      // the mean of 4096 a 64th of it; five of these.
      EXPECT_NEAR(mean, stochastic ? std::pow(0.999, 1000) : 1.0, 5 * 0.25 * 0.368 / 64);
    }
  }
}

TEST(OptimizerStep, TinySecondMomentsBesideALargeOneDoNotExplodeTheUpdate) {
  const int64_t n = 256;
  Contents contents = random_contents(n, 9);
  for (size_t i = 0; i < contents.grad.size(); ++i) {
    contents.first[i] = contents.grad[i] = std::pow(10.0, -static_cast<double>(i % 16));
    contents.second[i] = contents.grad[i] * contents.grad[i];
  }
  Arrays arrays({Number::f32, Main::f32, {}, Number::block8, Number::block8}, contents);
  const AdamCase hyper{1e-2, 0.9, 0.999, 1e-30, 0, 1, 100000};
  for (int round = 0; round < 3; ++round) {
    const Values before = arrays.contents().main;
    step(arrays.range(), hyper);
    const Values after = arrays.contents().main;
    // Exactly lr if all is stored in fp32; m may be 1/8 too large after two roundings, sqrt(v) 1/16 too small.
    for (size_t i = 0; i < after.size(); ++i) ASSERT_LE(std::abs(after[i] - before[i]), 1e-2 * 1.125 / 0.9375 + 1e-7);
  }
}

TEST(OptimizerStep, StorageThatDoesNotGoTogetherIsRefused) {
  Arrays arrays({}, random_contents(16, 1));
  const auto refused = [&](const auto& change) {
    OptimizerRange range = arrays.range();
    change(range);
    EXPECT_THROW(step(range, kAdam), std::logic_error);
  };
  refused([](OptimizerRange& range) { range.main = nullptr; });
  refused([](OptimizerRange& range) { range.remainder = reinterpret_cast<uint16_t*>(range.first.data); });
  refused([](OptimizerRange& range) { range.main_number = Number::f16; });
  refused([](OptimizerRange& range) { range.main_number = Number::f64; });
  refused([](OptimizerRange& range) { range.grad_number = Number::block8; });
  refused([](OptimizerRange& range) { range.second.number = Number::f16; });
  refused([](OptimizerRange& range) { range.second.number = Number::block8; });  // without scales
  refused([](OptimizerRange& range) { range.param = range.second.data, range.param_number = Number::f64; });
}

// The documented summation order, element by element.
double plain_sum_of_squares(const Values& values) {
  double total = 0;
  for (size_t block = 0; block < values.size(); block += kSumsBlock) {
    const size_t end = std::min(values.size(), block + kSumsBlock), even = block + (end - block) / 16 * 16;
    double lanes[16] = {}, sum = 0;
    for (size_t i = block; i < even; ++i) lanes[(i - block) % 16] += values[i] * values[i];
    for (size_t i = even; i < end; ++i) lanes[0] += values[i] * values[i];
    for (const double lane : lanes) sum += lane;
    total += sum;
  }
  return total;
}

// Numbers of similar size, so that another order of addition changes the last bit; every 29th is zero.
Values even_values(int64_t n) {
  Values values;
  for (int64_t i = 0; i < n; ++i) values.push_back(i % 29 == 5 ? 0.0 : std::sin(0.7 * static_cast<double>(i + 1)));
  return values;
}

TEST(GradientSums, AreThoseOfFixedBlocksToTheLastBitOnAnyNumberOfThreads) {
  for (const Number number : {Number::f64, Number::f32, Number::bf16, Number::f16}) {
    for (const int64_t n : {0, 1, 15, 16, 17, 31, 255, 256, 257, 271, 16384, 16385, 100003, 300003}) {
      Array grad(even_values(n), number, true, n % 3);
      const Values values = grad.values(true);
      const auto zeros = std::count(values.begin(), values.end(), 0.0);
      for (const int threads : {1, 2, 3}) {
        const Threads guard(threads);
        const GradientSums sums = gradient_sums(grad.pointer(), number, n);
        ASSERT_EQ(sums.sum_of_squares, plain_sum_of_squares(values)) << n;
        ASSERT_EQ(sums.num_zeros, zeros) << n;
        ASSERT_EQ(sums.num_nonfinite, 0) << n;
      }
    }
  }
}

TEST(GradientSums, BadElementsAreCountedAndReachTheSum) {
  for (const Number number : {Number::f64, Number::f32, Number::bf16, Number::f16}) {
    Values values = random_contents(40000, 3).grad;
    values[7] = std::numeric_limits<double>::infinity();
    values[39999] = -std::numeric_limits<double>::infinity();
    Array grad(values, number, true, 0);
    EXPECT_EQ(gradient_sums(grad.pointer(), number, 40000).num_nonfinite, 2);
    EXPECT_TRUE(std::isinf(gradient_sums(grad.pointer(), number, 40000).sum_of_squares));
    values[20000] = std::numeric_limits<double>::quiet_NaN();
    grad = Array(values, number, true, 0);
    EXPECT_EQ(gradient_sums(grad.pointer(), number, 40000).num_nonfinite, 3);
    EXPECT_TRUE(std::isnan(gradient_sums(grad.pointer(), number, 40000).sum_of_squares));
  }
}

}  // namespace
}  // namespace metroplex::kernels::test::optimizer_kernels_test

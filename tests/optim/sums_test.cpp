// Sums do not depend on the number of threads, and are right.
#include "optim/sums.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "optim/tools.h"

namespace metroplex::test {
namespace {

class Threads {
 public:
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

// Long enough for many blocks, with a tail; values over many magnitudes, so that the order shows.
at::Tensor spread(at::ScalarType dtype) {
  const at::Tensor x = values({1'000'003}, 3);
  return (x * at::exp(values({1'000'003}, 4) * 8.0)).to(dtype);
}

TEST(Sums, AreBitEqualForAnyNumberOfThreads) {
  const Threads restore;
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x = spread(dtype);
    at::Tensor holes = x.clone();
    holes.slice(0, 5, std::nullopt, 7).zero_();
    at::set_num_threads(1);
    const double one = optim::sum_of_squares(x);
    const int64_t zeros = optim::count_zeros(holes);
    for (const int threads : {2, 3}) {
      at::set_num_threads(threads);
      EXPECT_EQ(optim::sum_of_squares(x), one) << threads << " threads, " << c10::toString(dtype);
      EXPECT_EQ(optim::count_zeros(holes), zeros);
    }
  }
}

// Sums of positive doubles: 16 lanes of 1024, then 62 blocks, each addition within 2^-53.
TEST(Sums, AgreeWithASumInHigherPrecision) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x = spread(dtype), wide = x.to(at::kDouble);
    const double* data = wide.const_data_ptr<double>();
    long double exact = 0;
    for (int64_t i = 0; i < wide.numel(); ++i) exact += static_cast<long double>(data[i]) * data[i];
    const auto expected = static_cast<double>(exact);
    EXPECT_NEAR(optim::sum_of_squares(x), expected, 1e-13 * expected);
  }
}

TEST(Sums, CountExactZerosOnly) {
  at::Tensor x = at::ones({40'000}, at::kFloat);
  x[0] = 0.0;
  x[39'999] = -0.0;
  x[20'000] = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(optim::count_zeros(x), 2);
  EXPECT_EQ(optim::count_zeros(at::zeros({3, 5}, at::kDouble)), 15);
}

TEST(Sums, OfNothingAreZero) {
  EXPECT_EQ(optim::sum_of_squares(at::empty({0}, at::kFloat)), 0.0);
  EXPECT_EQ(optim::count_zeros(at::empty({0, 4}, at::kDouble)), 0);
}

TEST(Sums, OneBadElementShows) {
  at::Tensor x = values({50'000}, 1, at::kFloat);
  x[49'999] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(optim::sum_of_squares(x)));
  x[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(optim::sum_of_squares(x)));
}

TEST(Sums, RefuseATensorWithGaps) { EXPECT_THROW(optim::sum_of_squares(values({4, 4}, 1).t()), std::logic_error); }

}  // namespace
}  // namespace metroplex::test

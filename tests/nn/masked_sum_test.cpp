// The sum of losses.
#include "nn/loss.h"

#include "nn/tools.h"

namespace metroplex::test::masked_sum_test {
namespace {

// In fp32 the ones added to 2^30 are lost, in any order of the sum.
TEST(MaskedSum, AddsInDouble) {
  const at::Tensor losses = at::ones({256, 1}, at::kFloat), mask = at::ones({256, 1}, at::kFloat);
  losses[0].fill_(std::ldexp(1.0, 30));
  losses[255].fill_(-std::ldexp(1.0, 30));
  EXPECT_EQ(nn::masked_sum(losses, mask).item<double>(), 254);
  mask[100] = 0;
  EXPECT_EQ(nn::masked_sum(losses, mask).item<double>(), 253);
}

}  // namespace
}  // namespace metroplex::test::masked_sum_test

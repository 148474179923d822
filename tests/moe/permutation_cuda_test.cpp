// The permutation on the GPU against its CPU reference implementation: integers and sums in the same order, so all
// bits are equal.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <vector>

#include "moe/permutation.h"
#include "support/gpu.h"

namespace metroplex::moe::permutation_cuda_test {
namespace {

const device::Target kCpu;

void expect_equal(const Permutation& gpu, const Permutation& cpu) {
  EXPECT_TRUE(at::equal(gpu.rows.cpu(), cpu.rows));
  EXPECT_TRUE(at::equal(gpu.source.cpu(), cpu.source));
  EXPECT_TRUE(at::equal(gpu.counts.cpu(), cpu.counts));
}

TEST(PermutationOnGpu, EqualsTheCpu) {
  MPX_NEED_GPU();
  device::Target gpu;
  gpu.device = at::Device(at::kCUDA, 0);
  for (const int64_t tokens : {0, 1, 255, 1000}) {
    const at::Tensor first = at::arange(tokens, at::kLong).mul(7).remainder(13).sub(1).view({-1, 1});
    const at::Tensor experts = at::cat({first, first.add(1).remainder(12)}, 1).contiguous();
    for (const PermuteHow& how :
         {PermuteHow{.num_experts = 12, .num_rows = 2 * tokens},
          PermuteHow{.first = 4, .num_experts = 4, .chunk = 2, .copies = 3, .num_rows = 6 * tokens},
          PermuteHow{.num_experts = 12, .capacity = 2 * tokens, .num_rows = 24 * tokens}}) {
      const Permutation p = permutation(kCpu, experts, how), q = permutation(gpu, experts.cuda(), how);
      expect_equal(q, p);
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
        const at::Tensor x = at::arange(tokens * 70, at::kDouble).sin().view({tokens, 70}).to(type);
        const at::Tensor y = at::arange(how.num_rows * 70, at::kDouble).cos().view({how.num_rows, 70}).to(type);
        const at::Tensor here = p.source.ge(0).unsqueeze(1);
        EXPECT_TRUE(at::equal(permute(gpu, x.cuda(), {}, q).x.cpu().masked_fill(here.logical_not(), 0),
                              permute(kCpu, x, {}, p).x.masked_fill(here.logical_not(), 0)));
        EXPECT_TRUE(at::equal(unpermute(gpu, y.cuda(), q).cpu(), unpermute(kCpu, y, p)));
      }
    }
  }
  const at::Tensor table = at::tensor({2, 0, 1, 1, 3, 0}, at::kLong).view({2, 3});
  for (const RegroupHow& how : {RegroupHow{0, 7, 7}, RegroupHow{4, 24, 24}})
    expect_equal(regroup(gpu, table.cuda(), how), regroup(kCpu, table, how));
}

}  // namespace
}  // namespace metroplex::moe::permutation_cuda_test

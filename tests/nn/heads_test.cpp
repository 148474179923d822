// Splitting and joining of heads against views, copies and the rotation in place.
#include "nn/heads.h"

#include "nn/tools.h"

namespace metroplex::test::heads_test {
namespace {

using Of = nn::RopeTable::Of;

constexpr int64_t kRows = 5, kSamples = 2, kGroups = 3;

struct Case {
  std::vector<int64_t> heads;  // per group, of queries, (gates,) keys, values
  int64_t head_dim, rotary;
  bool interleaved = false;
};

at::Tensor region(const at::Tensor& fused, const Case& one, size_t which) {
  int64_t first = 0, all = 0;
  for (size_t i = 0; i < one.heads.size(); ++i) {
    if (i < which) first += one.heads[i];
    all += one.heads[i];
  }
  return fused.view({kRows, kSamples, kGroups, all, one.head_dim})
      .narrow(3, first, one.heads[which])
      .reshape({kRows, kSamples, kGroups * one.heads[which], one.head_dim});
}

// Rotated elements are sums of two products of at most `largest(wanted)` times the square root of 2. Compilers may
// fuse either product with the sum: 3 roundings of the arithmetic type. A half type may then round to its neighbor.
void expect_rotated(const at::Tensor& got, const at::Tensor& wanted, bool rotated) {
  if (!rotated) {
    EXPECT_TRUE(at::equal(got, wanted));
    return;
  }
  const at::ScalarType type = got.scalar_type();
  const double unit = type == at::kDouble ? 0x1p-53 : 0x1p-24, neighbor = type == at::kBFloat16 ? 0x1p-7
                                                                          : type == at::kHalf   ? 0x1p-10
                                                                                                : 0;
  EXPECT_LE(largest((got - wanted).to(at::kDouble)), (3 * unit + neighbor) * 1.5 * largest(wanted.to(at::kDouble)));
}

void check(const Case& one, at::ScalarType dtype, bool strided) {
  SCOPED_TRACE(testing::Message() << one.heads.size() << " regions of " << one.head_dim << ' ' << dtype);
  nn::RopeTable rope(nn::RopeSpec{.dims = one.rotary, .interleaved = one.interleaved}, device::Target());
  int64_t width = 0;
  for (const int64_t heads : one.heads) width += kGroups * heads * one.head_dim;
  const at::Tensor fused = at::randn({kRows, kSamples, width}, at::kDouble).to(dtype);
  const nn::Positions rows{3, {}, 0};
  std::vector<nn::FusedHeads> split;
  for (size_t which = 0; which < one.heads.size(); ++which) {
    at::Tensor x = at::zeros({kRows, kSamples, kGroups * one.heads[which], one.head_dim}, fused.options());
    if (strided) x = at::zeros({kSamples, x.size(2), kRows, one.head_dim}, x.options()).permute({2, 0, 1, 3});
    split.push_back(
        {x, which == 0 || which + 2 == one.heads.size() ? rope.angles(x, rows, Of::keys) : nn::RopeTable::Angles()});
  }
  nn::split_heads(device::Target(), fused, kGroups, split);
  for (size_t which = 0; which < one.heads.size(); ++which) {
    const at::Tensor wanted = region(fused, one, which).clone();
    const bool rotated = split[which].angles.cos.defined();
    if (rotated) rope.rotate(wanted, rows, 1);
    expect_rotated(split[which].x, wanted, rotated);
  }
  const at::Tensor joined = nn::join_heads(device::Target(), kGroups, split);
  for (size_t which = 0; which < one.heads.size(); ++which) {
    const at::Tensor wanted = split[which].x.clone();
    const bool rotated = split[which].angles.cos.defined();
    if (rotated) rope.rotate(wanted, rows, -1);
    expect_rotated(region(joined, one, which), wanted, rotated);
  }
}

TEST(Heads, EqualCopiesAndRotationsInPlace) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool strided : {false, true}) {
      check({{4, 1, 1}, 16, 16}, dtype, strided);
      check({{2, 2, 1, 1}, 10, 6}, dtype, strided);
      check({{1, 1, 1}, 7, 4, true}, dtype, strided);
    }
  }
}

TEST(Heads, JoinsGradientsOfAnyStrides) {
  const at::Tensor q = at::randn({kRows, kSamples, 4, kGroups}, at::kDouble).transpose(2, 3),
                   k = at::randn({kRows, kSamples, kGroups, 4}, at::kDouble);
  const at::Tensor joined = nn::join_heads(device::Target(), kGroups, {{q, {}}, {k, {}}});
  EXPECT_TRUE(at::equal(joined.view({kRows, kSamples, kGroups, 2, 4}), at::stack({q, k}, 3)));
}

}  // namespace
}  // namespace metroplex::test::heads_test

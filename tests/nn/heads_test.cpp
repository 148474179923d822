// Splitting and joining of heads against views, copies and the rotation in place.
#include "nn/heads.h"

#include "nn/norm.h"
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
  const at::Tensor joined = nn::join_heads(device::Target(), {kGroups}, split).fused;
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

// Queries and keys with a norm; gates and values have none.
struct NormedCase {
  Case heads;
  bool one_plus = false, strided = false;
};

class NormedHeads {
 public:
  NormedHeads(const NormedCase& one, at::ScalarType dtype)
      : one_(one.heads),
        norm_({"n", one_.head_dim, true, 1e-6, {}, topology::Role::qk_norm, one.one_plus},
              layer_context({}, false, dtype)),
        rope_(nn::RopeSpec{.dims = one_.rotary, .interleaved = one_.interleaved}, device::Target()) {
    int64_t width = 0;
    for (const int64_t heads : one_.heads) width += kGroups * heads * one_.head_dim;
    std::vector<nn::Param*> params;
    norm_.collect_params(params);
    weight_ = params[0];
    weight_->data.copy_(at::randn({one_.head_dim}, at::kDouble));
    give_main_grad(params);
    fused_ = at::randn({kRows, kSamples, width}, at::kDouble).to(dtype);
    for (size_t which = 0; which < one_.heads.size(); ++which) {
      at::Tensor x = at::zeros({kRows, kSamples, kGroups * one_.heads[which], one_.head_dim}, fused_.options());
      if (one.strided) x = at::zeros({kSamples, x.size(2), kRows, one_.head_dim}, x.options()).permute({2, 0, 1, 3});
      heads_.push_back({x});
      if (!is_normed(which)) continue;
      heads_.back().angles = rope_.angles(x, rows_, Of::keys);
      heads_.back().norm = norm_.head_norm();
      heads_.back().norm.rstd = at::zeros(x.sizes().slice(0, 3), fused_.options().dtype(nn::acc_type(dtype)));
    }
  }

  void check_split() {
    nn::split_heads(device::Target(), fused_, kGroups, heads_);
    for (size_t which = 0; which < heads_.size(); ++which) {
      at::Tensor wanted = region(fused_, one_, which).clone();
      if (is_normed(which)) wanted = norm_.apply(wanted, nullptr), rope_.rotate(wanted, rows_, 1);
      expect_rotated(heads_[which].x, wanted, is_normed(which));
    }
  }

  // A recomputation writes the heads of one kind again, without statistics.
  void check_skips() {
    std::vector<nn::FusedHeads> keys;
    for (const int64_t heads : one_.heads) keys.push_back({.x = {}, .skipped = heads});
    const size_t which = heads_.size() - 2;
    keys[which] = {at::zeros_like(heads_[which].x), heads_[which].angles, norm_.head_norm()};
    nn::split_heads(device::Target(), fused_, kGroups, keys);
    EXPECT_TRUE(at::equal(keys[which].x, heads_[which].x));
  }

  void check_join() {
    std::vector<nn::FusedHeads> gradients = heads_;
    for (nn::FusedHeads& part : gradients) part.x.copy_(at::randn(part.x.sizes(), at::kDouble));
    const nn::JoinedHeads joined = nn::join_heads(device::Target(), {kGroups, fused_}, gradients);
    ASSERT_EQ(joined.lines.size(), 2U);
    for (size_t which = 0, line = 0; which < gradients.size(); ++which) {
      const at::Tensor dy = gradients[which].x.clone(), got = region(joined.fused, one_, which);
      if (!is_normed(which)) {
        EXPECT_TRUE(at::equal(got, dy));
        continue;
      }
      rope_.rotate(dy, rows_, -1);
      const at::Tensor raw = region(fused_, one_, which);
      nn::NormSaved saved;
      norm_.apply(raw, &saved);
      EXPECT_TRUE(at::equal(saved.rstd.view(gradients[which].norm.rstd.sizes()), gradients[which].norm.rstd));
      expect_gradients(got, dy, saved, joined.lines[line++]);
    }
  }

 private:
  bool is_normed(size_t which) const { return which == 0 || which + 2 == one_.heads.size(); }

  // dx = rstd (w dy - n mean(w dy n)) with n = rstd x. Rotations that round differently (expect_rotated) change dy by
  // `unit`, and with it each of the two terms; both also take 8 roundings of the arithmetic type, and dx is rounded
  // once. The weight's gradient sums dy n over all heads, in different orders.
  void expect_gradients(const at::Tensor& got, const at::Tensor& dy, const nn::NormSaved& saved,
                        const at::Tensor& lines) {
    const at::ScalarType type = got.scalar_type();
    const double wide = type == at::kDouble ? 0x1p-53 : 0x1p-24, neighbor = type == at::kBFloat16 ? 0x1p-7
                                                                            : type == at::kHalf   ? 0x1p-10
                                                                                                  : 0;
    const auto heads = static_cast<double>(dy.numel() / one_.head_dim);
    weight_->main_grad.zero_();
    const at::Tensor dx = norm_.backward(dy, saved), dweight = weight_->main_grad.clone();
    weight_->main_grad.zero_();
    nn::accumulate_line_sums(device::Target(), {norm_.weight_lines(lines)});
    const double rstd = largest(saved.rstd.to(at::kDouble)), normal = rstd * largest(saved.x.to(at::kDouble)),
                 term = largest(dy.to(at::kDouble)) * (1 + largest(weight_->data.to(at::kDouble)));
    EXPECT_LE(largest((got - dx).to(at::kDouble)),
              (neighbor + 11 * wide) * rstd * term * (1 + normal * normal) + neighbor * largest(dx.to(at::kDouble)));
    EXPECT_LE(largest((weight_->main_grad - dweight).to(at::kDouble)),
              heads * (neighbor + (heads + 11) * wide) * largest(dy.to(at::kDouble)) * normal);
    EXPECT_GT(largest(dweight.to(at::kDouble)), 0);
  }

  Case one_;
  nn::Norm norm_;
  nn::RopeTable rope_;
  nn::Param* weight_ = nullptr;
  at::Tensor fused_;
  std::vector<nn::FusedHeads> heads_;
  nn::Positions rows_{3, {}, 0};
};

TEST(NormedHeads, EqualNormsAndRotations) {
  const std::vector<NormedCase> cases{{{{4, 1, 1}, 64, 64}},
                                      {{{2, 2, 1, 1}, 96, 48}, true, true},
                                      {{{1, 1, 1}, 128, 128, true}, true},
                                      {{{2, 1, 1}, 7, 4, true}, false, true},
                                      {{{3, 1, 1}, 9, 2}}};
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const NormedCase& one : cases) {
      SCOPED_TRACE(testing::Message() << "head size " << one.heads.head_dim << ' ' << dtype);
      NormedHeads heads(one, dtype);
      heads.check_split();
      heads.check_skips();
      heads.check_join();
    }
  }
}

TEST(Heads, JoinsGradientsOfAnyStrides) {
  const at::Tensor q = at::randn({kRows, kSamples, 4, kGroups}, at::kDouble).transpose(2, 3),
                   k = at::randn({kRows, kSamples, kGroups, 4}, at::kDouble);
  const at::Tensor joined = nn::join_heads(device::Target(), {kGroups}, {{q}, {k}}).fused;
  EXPECT_TRUE(at::equal(joined.view({kRows, kSamples, kGroups, 2, 4}), at::stack({q, k}, 3)));
}

}  // namespace
}  // namespace metroplex::test::heads_test

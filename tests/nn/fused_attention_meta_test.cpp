// The fused attention of libtorch on the meta device: the results' types and strides, and the memory that the real
// operator takes on the way, forward and backward, over the lengths at which its blocks change.
#include "nn/fused_attention_meta.h"

#include <ATen/native/CPUBlas.h>

#include "nn/tools.h"
#include "support/allocations.h"
#include "support/without_onednn.h"

namespace metroplex::test {
namespace {

struct Case {
  int64_t s, b, heads, groups, d;
  at::ScalarType dtype;
  bool causal;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t s : {1, 31, 33, 191, 192, 513, 768}) {
      for (const int64_t groups : {1, 2, 4}) all.push_back({s, 2, 4, groups, groups == 1 ? 7 : 8, dtype, s != 33});
    }
    all.push_back({40, 1, 1, 1, 8, dtype, true});
  }
  return all;
}

// As attention has them: views into [s, b, groups, heads a group + 2, d], where there is one head a group.
nn::FusedInputs inputs(const Case& c, at::Device device) {
  const int64_t each = c.heads / c.groups;
  const at::Tensor fused =
      at::zeros({c.s, c.b, c.groups, each + 2, c.d}, at::TensorOptions().dtype(c.dtype).device(device));
  const auto heads_first = [](const at::Tensor& x) { return x.permute({1, 2, 0, 3}); };
  return {heads_first(fused.narrow(3, 0, each).reshape({c.s, c.b, c.heads, c.d})), heads_first(fused.select(3, each)),
          heads_first(fused.select(3, each + 1))};
}

struct Outcome {
  Allocations forward, backward;
  std::vector<at::Tensor> results;
};

Outcome outcome(const Case& c, const cuda::Target& target) {
  const nn::FusedInputs in = inputs(c, target.memory());
  const at::Tensor dout = at::zeros({c.s, c.b, c.heads, c.d}, in.q.options()).permute({1, 2, 0, 3});
  Outcome outcome;
  at::Tensor out, logsumexp;
  nn::FusedGradients d;
  outcome.forward = allocations_of([&] { std::tie(out, logsumexp) = nn::fused_attention(target, in, c.causal); });
  outcome.backward = allocations_of([&] {
    d = nn::fused_attention_backward(target, in, {out, logsumexp, dout}, c.causal);
  });
  outcome.results = {out, logsumexp, d.q, d.k, d.v};
  return outcome;
}

std::string name_of(const Case& c) {
  return base::concat("s ", c.s, " groups ", c.groups, " of ", c.heads, " d ", c.d, " ", c10::toString(c.dtype));
}

TEST(FusedAttentionOnMeta, HasTheStridesAndTheMemoryOfTheCpusOperator) {
  const WithoutOneDnn without;
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const Outcome real = outcome(c, {}), meta = outcome(c, {at::kCPU, nullptr, true});
    expect_same_allocations(meta.forward, real.forward);
    expect_same_allocations(meta.backward, real.backward);
    for (size_t i = 0; i < real.results.size(); ++i) {
      EXPECT_EQ(meta.results[i].scalar_type(), real.results[i].scalar_type()) << i;
      EXPECT_EQ(meta.results[i].sizes(), real.results[i].sizes()) << i;
      EXPECT_EQ(meta.results[i].strides(), real.results[i].strides()) << i;
    }
  }
}

// Where oneDNN does not pack on this machine, meta tensors are not packed either.
TEST(FusedAttentionOnMeta, PacksKeysAndValuesWhereOneDnnGetsThem) {
  int packed = 0;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const bool could = at::native::cpublas::could_pack(dtype);
    for (const int64_t s : {16, 64, 192, 513, 768}) {
      for (const int64_t d : {8, 7}) {
        const Case c{s, 2, 4, 2, d, dtype, true};
        SCOPED_TRACE(name_of(c));
        const Allocations with = outcome(c, {at::kCPU, nullptr, true}).forward;
        const WithoutOneDnn without;
        const Allocations none = outcome(c, {at::kCPU, nullptr, true}).forward;
        packed += with != none;
        if (!could) { EXPECT_EQ(with, none); }
      }
    }
    if (!could) continue;
    for (const Case& c : {Case{513, 2, 4, 4, 8, dtype, true}, Case{513, 2, 4, 2, 7, dtype, true},
                          Case{768, 1, 8, 1, 64, dtype, true}, Case{192, 3, 4, 4, 16, dtype, false}}) {
      SCOPED_TRACE(name_of(c));
      expect_same_allocations(outcome(c, {at::kCPU, nullptr, true}).forward, outcome(c, {}).forward);
    }
    EXPECT_GT(packed, 5);
  }
}

// By hand, in bf16: 2 x 4 heads of 64 over 130 tokens, keys of 2 heads.
TEST(FusedAttentionOnMeta, TakesWhatFlashAttentionTakesOfAGpu) {
  const Outcome gpu = outcome({130, 2, 4, 2, 64, at::kBFloat16, true}, {at::Device(at::kCUDA, 0), nullptr, true});
  const int64_t q = 2 * 130 * 4 * 64 * 2, k = q / 2;
  EXPECT_EQ(held(gpu.forward).kept, q + 2 * 4 * 130 * 4) << "out and logsumexp";
  const int64_t rows = 256;  // of queries, in blocks of 128
  const int64_t work = q /* out, packed */ + q /* dout, packed */ + 2 * 4 * rows * 4 /* sums */ +
                       2 * rows * 4 * 64 * 4 /* dq in fp32 */ + 2 * q /* dk, dv of every head */ + 16 /* seed */;
  EXPECT_EQ(held(gpu.backward).kept, q + 2 * k);
  EXPECT_EQ(held(gpu.backward).peak, q + 2 * k + work);
}

TEST(FusedAttentionOnMeta, TakesWhatTheMemoryEfficientOneTakesOfAGpu) {
  const Outcome gpu = outcome({130, 2, 4, 4, 72, at::kFloat, true}, {at::Device(at::kCUDA, 0), nullptr, true});
  const int64_t x = 2 * 130 * 4 * 72 * 4, sums = 2 * 4 * 130 * 4;
  EXPECT_EQ(held(gpu.forward).kept, x + 2 * 4 * 160 * 4) << "logsumexp in steps of 32";
  const int64_t workspace = 2 * 4 * 3 * 2 * (64 * 64 * 4 + 16);  // tiles of 64 queries by 64 features
  EXPECT_EQ(held(gpu.backward).kept, 3 * x);
  EXPECT_EQ(held(gpu.backward).peak, 3 * x + x /* dout, packed as out is already */ + 16 + sums + workspace);
}

}  // namespace
}  // namespace metroplex::test

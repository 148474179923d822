// The fused attention of a GPU on the meta device: its memory in forward and backward.
#include "nn/fused_attention.h"

#include "nn/tools.h"
#include "support/allocations.h"

namespace metroplex::test::fused_attention_meta_test {
namespace {

struct Case {
  int64_t s, b, heads, groups, d;
  at::ScalarType dtype;
  config::AttentionBy by = config::AttentionBy::flash;
  int64_t documents = 0;  // maximum number; 0: no offsets
};

// As in an attention layer: views into [s, b, groups, heads per group + 2, d] if there is one head per group.
nn::FusedInputs inputs(const Case& test_case, at::Device device) {
  const int64_t each = test_case.heads / test_case.groups;
  const at::Tensor fused = at::zeros({test_case.s, test_case.b, test_case.groups, each + 2, test_case.d},
                                     at::TensorOptions().dtype(test_case.dtype).device(device));
  const auto heads_first = [](const at::Tensor& x) { return x.permute({1, 2, 0, 3}); };
  return {heads_first(fused.narrow(3, 0, each).reshape({test_case.s, test_case.b, test_case.heads, test_case.d})),
          heads_first(fused.select(3, each)), heads_first(fused.select(3, each + 1))};
}

struct Outcome {
  Allocations forward, backward;
};

Outcome outcome(const Case& test_case) {
  const device::Target target{at::Device(at::kCUDA, 0), nullptr, true};
  const nn::FusedInputs in = inputs(test_case, target.memory());
  const at::Tensor dout =
      at::zeros({test_case.s, test_case.b, test_case.heads, test_case.d}, in.q.options()).permute({1, 2, 0, 3});
  nn::FusedSpec spec{test_case.by, true, 0.125, -1, {}};
  const at::Tensor offsets = at::zeros({test_case.documents + 1}, in.q.options().dtype(at::kLong));
  if (test_case.documents > 0) spec.documents = {offsets, offsets};
  Outcome outcome;
  at::Tensor out, logsumexp;
  nn::FusedGradients gradients;
  outcome.forward = record_allocations([&] { std::tie(out, logsumexp) = nn::fused_attention(target, in, spec); });
  outcome.backward = record_allocations([&] {
    gradients = nn::fused_attention_backward(target, in, {out, logsumexp, dout}, spec);
  });
  return outcome;
}

// By hand, in bf16: 2 x 4 heads of 64 over 130 tokens, keys of 2 heads.
TEST(FusedAttentionOnMeta, TakesWhatFlashAttentionTakesOfAGpu) {
  const Outcome gpu = outcome({130, 2, 4, 2, 64, at::kBFloat16});
  const int64_t q = 2 * 130 * 4 * 64 * 2, k = q / 2;
  EXPECT_EQ(held(gpu.forward).kept, q + 2 * 4 * 130 * 4) << "out and logsumexp";
  const int64_t rows = 256;  // of queries, in blocks of 128
  const int64_t work = q /* out, packed */ + q /* dout, packed */ + 2 * 4 * rows * 4 /* sums */ +
                       2 * rows * 4 * 64 * 4 /* dq in fp32 */ + 2 * q /* dk, dv of every head */ + 16 /* seed */;
  EXPECT_EQ(held(gpu.backward).kept, q + 2 * k);
  EXPECT_EQ(held(gpu.backward).peak, q + 2 * k + work);
}

// As above, and with one sample, which needs no copies: at most 5 documents, each with an extra block of queries.
// Reads no values, because a meta tensor has none.
TEST(FusedAttentionOnMeta, TakesWhatFlashAttentionOfDocumentsTakesOfAGpu) {
  for (const int64_t b : {1, 2}) {
    const Outcome gpu = outcome({130, b, 4, 2, 64, at::kBFloat16, config::AttentionBy::flash, 5});
    const int64_t q = b * 130 * 4 * 64 * 2, k = q / 2, offsets = 6 * 4, rows = b * 130 + 5 * 128;
    EXPECT_EQ(held(gpu.forward).kept, q + 4 * b * 130 * 4);
    const int64_t copies = b == 1 ? 0 : q + 2 * k + q /* q, k, v and dout by samples, as out is already */;
    const int64_t work = copies + offsets + 16 /* seed */ + 4 * rows * 4 /* sums */ +
                         rows * 4 * 64 * 4 /* dq in fp32 */ + 2 * q /* dk, dv of every head */;
    EXPECT_EQ(held(gpu.backward).kept, q + 2 * k);
    EXPECT_EQ(held(gpu.backward).peak, q + 2 * k + work) << b;
  }
}

// cuDNN's own workspace is an estimate.
TEST(FusedAttentionOnMeta, TakesWhatLibtorchTakesAroundCudnn) {
  const Outcome gpu = outcome({130, 1, 4, 4, 64, at::kBFloat16, config::AttentionBy::cudnn});
  const int64_t x = 130 * 4 * 64 * 2;
  EXPECT_EQ(held(gpu.forward).kept, x + 4 * 130 * 4);
  EXPECT_EQ(held(gpu.backward).kept, 3 * x);
  EXPECT_EQ(held(gpu.backward).peak, 3 * x + 16 /* seed */ + 2 * x);
}

TEST(FusedAttentionOnMeta, TakesWhatTheMemoryEfficientOneTakesOfAGpu) {
  const Outcome gpu = outcome({130, 2, 4, 4, 72, at::kFloat, config::AttentionBy::memory_efficient});
  const int64_t x = 2 * 130 * 4 * 72 * 4, sums = 2 * 4 * 130 * 4;
  EXPECT_EQ(held(gpu.forward).kept, x + 2 * 4 * 160 * 4) << "logsumexp in steps of 32";
  const int64_t workspace = 2 * 4 * 3 * 2 * (64 * 64 * 4 + 16);  // tiles of 64 queries by 64 features
  EXPECT_EQ(held(gpu.backward).kept, 3 * x);
  EXPECT_EQ(held(gpu.backward).peak, 3 * x + x /* dout, packed as out is already */ + 16 + sums + workspace);
}

}  // namespace
}  // namespace metroplex::test::fused_attention_meta_test

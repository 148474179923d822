// Logits of a half-precision output layer in fp32 (precision.output_logit_dtype) against float64.
#include "config/config.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/loss.h"
#include "nn/matmul.h"
#include "nn/tools.h"
#include "support/run_ranks.h"

#include <torch/csrc/autograd/autograd.h>

namespace metroplex::test::wide_logits_ranks_test {
namespace {

constexpr int64_t kTokens = 16, kSamples = 4, kHidden = 64, kVocab = 90;

struct Result {
  at::Tensor losses, dx, dweight;  // on all ranks, whole
};

at::Tensor targets() { return (at::arange(kTokens * kSamples, at::kLong) * 7 % kVocab).view({kTokens, kSamples}); }

// Values of bf16, in any type.
at::Tensor input(at::ScalarType dtype) {
  return (sample({kTokens, kSamples, kHidden}, 1) * 3 - 1.5).to(at::kBFloat16).to(dtype);
}

struct Form {
  at::ScalarType dtype = at::kBFloat16;
  config::OutputLogitDtype logits = config::OutputLogitDtype::fp32;
  int64_t chunk = 0;
  bool sequence_parallel = false;
};

// `weights` [kVocab, kHidden], equal on all ranks.
Result run(const comm::Group& tp, const at::Tensor& weights, const Form& form) {
  nn::LayerContext context = layer_context(tp, form.sequence_parallel, form.dtype);
  context.precision.output_logit_dtype = form.logits;
  const nn::VocabularyShard shard =
      nn::make_vocabulary_shard(kVocab, config::padded_vocab_size(kVocab, 8, tp.size()), tp.size(), tp.index());
  auto weight = nn::make_vocabulary_param({"output", kVocab, kHidden, topology::Role::output}, shard, context);
  weight->data.narrow(0, 0, shard.valid_rows).copy_(weights.narrow(0, shard.begin, shard.valid_rows));
  give_main_grad({weight.get()});
  const nn::CrossEntropySpec spec{tp, shard, kVocab, 0, {}};
  const at::Tensor whole = input(form.dtype);
  const at::Tensor x =
      (form.sequence_parallel ? comm::select_shard(whole, 0, tp) : whole).contiguous().requires_grad_();
  nn::Linear layer(weight, context);
  nn::LossChunks chunks(*weight, spec, context);
  chunks.tokens = form.chunk;
  at::Tensor losses;
  if (form.chunk > 0) losses = chunks.forward(x, targets());
  else losses = nn::vocab_parallel_cross_entropy(layer.forward(x), targets(), spec);
  const at::Tensor dx = torch::autograd::grad({losses}, {x}, {at::ones_like(losses)})[0];
  return {losses.detach(), form.sequence_parallel ? comm::all_gather(dx, 0, tp) : dx,
          whole_gradient(*weight, tp).narrow(0, 0, kVocab)};
}

at::Tensor make_weights() { return (sample({kVocab, kHidden}, 3) - 0.5).to(at::kBFloat16); }

double mean_error(const Result& result, const Result& exact) {
  return (result.losses.to(at::kDouble) - exact.losses).abs().mean().item<double>();
}

// bf16 rounds a logit to 8 bits, fp32 to 24. An fp32 sum of 64 terms adds up to 2^6 roundings. That leaves a factor
// of 2^(24 - 8 - 6) = 2^10 between the errors; half of it is required.
TEST(WideLogitsRanks, LossIsNearFloat64) {
  for (const int tp : {1, 2}) {
    run_ranks(tp, [&](const comm::World& world) {
      const comm::Group& group = world.groups().tp;
      const Result exact =
          run(group, make_weights(), {.dtype = at::kDouble, .logits = config::OutputLogitDtype::params});
      const double rounded =
          mean_error(run(group, make_weights(), {.logits = config::OutputLogitDtype::params}), exact);
      for (const int64_t chunk : {0, 5}) {
        for (const bool sequence_parallel : {false, true}) {
          SCOPED_TRACE(base::concat("tp ", tp, " chunk ", chunk, " sp ", sequence_parallel));
          const Result wide = run(group, make_weights(), {.chunk = chunk, .sequence_parallel = sequence_parallel});
          EXPECT_EQ(wide.losses.scalar_type(), at::kFloat);
          EXPECT_LT(mean_error(wide, exact) * 512, rounded);
        }
      }
    });
  }
}

// bf16 rounds the gradient of each logit by at most 2^-8 of it, and each product likewise: two times 2^-8 of the
// product of absolute values. fp32 sums add 2^-16; 1.1 covers them and second-order terms. With tp each rank rounds
// its product and the sum is rounded once more.
TEST(WideLogitsRanks, GradientsAreRoundedOnce) {
  for (const int tp : {1, 2}) {
    run_ranks(tp, [&](const comm::World& world) {
      const comm::Group& group = world.groups().tp;
      const at::Tensor weights = make_weights(), w = weights.to(at::kDouble),
                       x = input(at::kBFloat16).to(at::kDouble);
      const Result exact = run(group, weights, {.dtype = at::kDouble, .logits = config::OutputLogitDtype::params});
      const at::Tensor dlogits = at::softmax(at::matmul(x, w.t()), -1).sub(at::one_hot(targets(), kVocab)).abs();
      const at::Tensor dx_size = at::matmul(dlogits, w.abs()),
                       dweight_size = at::matmul(dlogits.flatten(0, 1).t(), x.flatten(0, 1).abs());
      const double most = (tp > 1 ? 3 : 2) * 0x1p-8 * 1.1;
      for (const int64_t chunk : {0, 64, 5}) {
        SCOPED_TRACE(base::concat("tp ", tp, " chunk ", chunk));
        const Result wide = run(group, weights, {.chunk = chunk});
        EXPECT_LE(largest((wide.dx.to(at::kDouble) - exact.dx) / dx_size), most);
        EXPECT_LE(largest((wide.dweight - exact.dweight) / dweight_size), most);
      }
    });
  }
}

TEST(WideLogits, DoNotChangeWideTypes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x = sample({7, 12}, 1, dtype), weight = sample({9, 12}, 2, dtype);
    EXPECT_TRUE(at::equal(nn::wide_linear_product({}, x, weight.t()), nn::linear_product({}, x, weight.t())));
  }
}

// The blocks have 8 MiB / (4 x 64) = 32768 columns. Sums of 64 products of size 1 have errors of at most 64 x 2^-24
// of the sum of absolute values.
TEST(WideLogits, BlocksOfTheVocabularyAreComplete) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = sample({3, 64}, 1, dtype), weight = sample({40000, 64}, 2, dtype);
    const at::Tensor out = nn::wide_linear_product({}, x, weight.t());
    EXPECT_EQ(out.scalar_type(), at::kFloat);
    const at::Tensor wide = x.to(at::kDouble), exact = at::matmul(wide, weight.to(at::kDouble).t()),
                     size = at::matmul(wide.abs(), weight.to(at::kDouble).abs().t());
    EXPECT_LE(largest((out.to(at::kDouble) - exact) / size), 64 * 0x1p-24);
  }
}

}  // namespace
}  // namespace metroplex::test::wide_logits_ranks_test

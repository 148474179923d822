// The head's loss by chunks against the head's loss at once: forward and gradients in float64.
#include "config/config.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/loss.h"
#include "nn/tools.h"
#include "support/run_ranks.h"

#include <torch/csrc/autograd/autograd.h>

namespace metroplex::test::loss_chunks_ranks_test {
namespace {

// Both sides add the same terms of size 1, up to 24 per sum, in another order.
constexpr double kTolerance = 1e-13;
constexpr int64_t kTokens = 8, kSamples = 3, kHidden = 12, kVocab = 21;

struct Head {
  nn::LayerContext context;
  nn::CrossEntropySpec spec;
  std::shared_ptr<nn::Param> weight;
  double divisor = 1, softcap = 0;

  Head(const comm::Group& tp, bool sequence_parallel, double smoothing)
      : context(layer_context(tp, sequence_parallel)) {
    const nn::VocabularyShard shard =
        nn::make_vocabulary_shard(kVocab, config::padded_vocab_size(kVocab, 8, tp.size()), tp.size(), tp.index());
    spec = {tp, shard, kVocab, smoothing, context.target};
    weight = nn::make_vocabulary_param({"output", kVocab, kHidden, topology::Role::output}, shard, context);
    give_main_grad({weight.get()});
  }
};

struct Result {
  at::Tensor losses, dx, dweight;
};

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }

at::Tensor targets() { return (at::arange(kTokens * kSamples, at::kLong) * 7 % kVocab).view({kTokens, kSamples}); }

// Backward adds to a gradient of ones if `adds`, else it overwrites.
Result finish(const Head& head, const at::Tensor& losses, const at::Tensor& x, bool adds) {
  head.weight->uninitialized = !adds;
  head.weight->main_grad.fill_(1);
  head.weight->begin_backward();
  const at::Tensor dx = torch::autograd::grad({losses}, {x}, {sample({kTokens, kSamples}, 2)})[0];
  return {losses.detach(), dx, head.weight->main_grad.clone()};
}

// The reference computes all logits with Linear.
Result run_at_once(const Head& head, const at::Tensor& local, bool adds) {
  nn::Linear layer(head.weight, head.context);
  const at::Tensor x = leaf(local);
  at::Tensor logits = layer.forward(x) / head.divisor;
  if (head.softcap > 0) logits = at::tanh(logits / head.softcap) * head.softcap;
  return finish(head, nn::vocab_parallel_cross_entropy(logits.clone(), targets(), head.spec), x, adds);
}

nn::LossChunks make_chunks(const Head& head, int64_t tokens) {
  nn::LossChunks chunks(*head.weight, head.spec, head.context);
  chunks.tokens = tokens, chunks.divisor = head.divisor, chunks.softcap = head.softcap;
  return chunks;
}

Result run_chunks(const Head& head, const at::Tensor& local, bool adds, const nn::LossChunks& chunks) {
  const at::Tensor x = leaf(local);
  return finish(head, chunks.forward(x, targets()), x, adds);
}

void expect_equal(const Result& got, const Result& expected) {
  EXPECT_LT(relative_difference(got.losses, expected.losses), kTolerance);
  EXPECT_LT(relative_difference(got.dx, expected.dx), kTolerance);
  EXPECT_LT(relative_difference(got.dweight, expected.dweight), kTolerance);
}

TEST(LossChunksRanks, EqualLossAtOnce) {
  for (const int tp : {1, 2, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      run_ranks(tp, [&](const comm::World& world) {
        for (const double softcap : {0.0, 1.5}) {
          SCOPED_TRACE(base::concat("tp ", tp, " sp ", sequence_parallel, " softcap ", softcap));
          const comm::Group& group = world.groups().tp;
          Head head(group, sequence_parallel, softcap > 0 ? 0.15 : 0.0);
          head.softcap = softcap, head.divisor = softcap > 0 ? 0.7 : 1;
          const at::Tensor whole = sample({kTokens, kSamples, kHidden}, 1);
          const at::Tensor x = (sequence_parallel ? comm::select_shard(whole, 0, group) : whole).contiguous();
          for (const bool adds : {false, true}) {
            const Result expected = run_at_once(head, x, adds);
            for (const int64_t tokens : {1, 5, 8, 23, 24, 100}) {
              SCOPED_TRACE(base::concat("chunks of ", tokens, adds ? ", adds" : ""));
              expect_equal(run_chunks(head, x, adds, make_chunks(head, tokens)), expected);
            }
          }
        }
      });
    }
  }
}

// Without a weight gradient, and with one that the schedule computes later.
TEST(LossChunksRanks, FrozenAndDeferredWeightsHaveSameGradients) {
  for (const bool sequence_parallel : {false, true}) {
    run_ranks(2, [&](const comm::World& world) {
      SCOPED_TRACE(base::concat("sp ", sequence_parallel));
      const comm::Group& group = world.groups().tp;
      Head head(group, sequence_parallel, 0);
      const at::Tensor whole = sample({kTokens, kSamples, kHidden}, 1);
      const at::Tensor x = (sequence_parallel ? comm::select_shard(whole, 0, group) : whole).contiguous();
      const Result expected = run_at_once(head, x, true);
      const nn::LossChunks chunks = make_chunks(head, 5);
      std::vector<std::function<void()>> calls;
      head.weight->deferred = &calls;
      Result deferred = run_chunks(head, x, true, chunks);
      head.weight->deferred = nullptr;
      EXPECT_EQ(largest(deferred.dweight - 1), 0.0);
      ASSERT_EQ(calls.size(), 1u);
      calls[0]();
      deferred.dweight = head.weight->main_grad.clone();
      expect_equal(deferred, expected);
      head.weight->frozen = true;
      const Result frozen = run_chunks(head, x, true, chunks);
      EXPECT_LT(relative_difference(frozen.dx, expected.dx), kTolerance);
      EXPECT_EQ(largest(frozen.dweight - 1), 0.0);
    });
  }
}

// The largest product has the rows of one chunk, and forward and backward have one product more than at once.
TEST(LossChunksRanks, LogitsNeverExistAsAWhole) {
  struct Products final : device::Recorder {
    int64_t count = 0, most = 0;
    void run(device::Operation operation) override { operation.run(); }
    void issued(const device::Operation& product) override {
      ++count;
      for (const at::Tensor& x : product.writes) {
        if (x.size(-1) == 24) most = std::max(most, x.size(0));  // logits: 21 columns, padded
      }
    }
  } products;
  Head head({}, false, 0);
  head.context.target.recorder = head.spec.target.recorder = &products;
  const at::Tensor x = sample({kTokens, kSamples, kHidden}, 1);
  run_at_once(head, x, true);
  EXPECT_EQ(std::exchange(products.count, 0), 3);
  EXPECT_EQ(std::exchange(products.most, 0), kTokens * kSamples);
  run_chunks(head, x, true, make_chunks(head, 7));
  EXPECT_EQ(products.count, 4 * 4);  // 24 rows are 4 chunks of at most 7
  EXPECT_EQ(products.most, 7);
}

}  // namespace
}  // namespace metroplex::test::loss_chunks_ranks_test

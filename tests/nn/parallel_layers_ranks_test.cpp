// Parallel layers against unsharded ones, forward and gradients, in float64: all forms of linear layers, embedding,
// cross entropy, and both kinds of initialization.
#include "config/config.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/loss.h"
#include "nn/matmul.h"
#include "nn/tools.h"
#include "support/run_ranks.h"

#include <torch/csrc/autograd/autograd.h>

namespace metroplex::test::parallel_layers_ranks_test {
namespace {

constexpr double kTolerance = 1e-13;  // sums of up to 24 terms of size 1

template <class Body>  // body(tp group, sequence parallel)
void for_each_layout(const Body& body) {
  for (const int tp : {1, 2, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(testing::Message() << "tp " << tp << (sequence_parallel ? " sp" : ""));
      run_ranks(tp, [&](const comm::World& world) { body(world.groups().tp, sequence_parallel); });
    }
  }
}

struct Reference {
  at::Tensor out, dx, dweight, dbias;
};

Reference reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& dy) {
  Reference reference;
  reference.out = at::matmul(x, weight.t());
  if (bias.defined()) reference.out = reference.out + bias;
  reference.dx = at::matmul(dy, weight);
  reference.dweight = at::matmul(dy.reshape({-1, dy.size(-1)}).t(), x.reshape({-1, x.size(-1)}));
  if (bias.defined()) reference.dbias = dy.reshape({-1, dy.size(-1)}).sum(0);
  return reference;
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }

// This rank's rows with sequence parallelism, else the whole tensor.
at::Tensor local(const at::Tensor& x, const comm::Group& tp, bool sequence_parallel) {
  return (sequence_parallel ? comm::select_shard(x, 0, tp) : x).contiguous();
}

at::Tensor gather_values(const nn::Param& param, const comm::Group& tp) { return whole(param, param.data, tp); }

void random_bias(nn::Param* bias) {
  if (bias == nullptr) return;
  nn::fill(*bias, [](int64_t i) { return std::sin(static_cast<double>(i)); });
}

template <class Layer>
void prepare(Layer& layer) {
  std::vector<nn::Param*> params;
  layer.collect_params(params);
  give_main_grad(params);
  random_bias(layer.bias());
}

TEST(ColumnParallelLinearRanks, EqualsTheUnshardedLayer) {
  for_each_layout([](const comm::Group& tp, bool sequence_parallel) {
    for (const bool skip_bias : {false, true}) {
      nn::LinearSpec spec{"fc", 12, 24, true, skip_bias, nn::Init::normal};
      nn::Linear layer(spec, nn::LinearSplit::output, layer_context(tp, sequence_parallel));
      prepare(layer);
      const at::Tensor x = sample({8, 3, 12}, 1), dy = sample({8, 3, 24}, 2);
      const Reference right = reference(x, gather_values(layer.weight(), tp),
                                        skip_bias ? at::Tensor() : gather_values(*layer.bias(), tp), dy);
      const at::Tensor input = leaf(local(x, tp, sequence_parallel)), out = layer.forward(input);
      EXPECT_LT(relative_difference(out, comm::select_shard(right.out, -1, tp)), kTolerance);
      const at::Tensor dx = torch::autograd::grad({out}, {input}, {comm::select_shard(dy, -1, tp).contiguous()})[0];
      EXPECT_LT(relative_difference(dx, local(right.dx, tp, sequence_parallel)), kTolerance);
      EXPECT_LT(relative_difference(whole_gradient(layer.weight(), tp), right.dweight), kTolerance);
      if (!skip_bias) { EXPECT_LT(relative_difference(whole_gradient(*layer.bias(), tp), right.dbias), kTolerance); }
    }
  });
}

TEST(ColumnParallelLinearRanks, GatedOutputsKeepGateAndUpApart) {
  for_each_layout([](const comm::Group& tp, bool sequence_parallel) {
    nn::LinearSpec spec{"fc", 12, 16, false, false, nn::Init::normal, /*sections=*/{8, 8}};
    nn::Linear layer(spec, nn::LinearSplit::output, layer_context(tp, sequence_parallel));
    give_main_grad({&layer.weight()});
    const at::Tensor x = sample({4, 2, 12}, 1), weight = gather_values(layer.weight(), tp);
    const at::Tensor out = layer.forward(local(x, tp, sequence_parallel));
    const int64_t width = 8 / tp.size(), first = width * tp.index();
    const at::Tensor all = at::matmul(x, weight.t());
    EXPECT_LT(relative_difference(out, at::cat({all.narrow(-1, first, width), all.narrow(-1, 8 + first, width)}, -1)),
              kTolerance);
  });
}

TEST(RowParallelLinearRanks, EqualsTheUnshardedLayer) {
  for_each_layout([](const comm::Group& tp, bool sequence_parallel) {
    nn::LinearSpec spec{"proj", 24, 12, true, false, nn::Init::scaled_normal};
    nn::Linear layer(spec, nn::LinearSplit::input, layer_context(tp, sequence_parallel));
    prepare(layer);
    const at::Tensor x = sample({8, 3, 24}, 1), dy = sample({8, 3, 12}, 2);
    const Reference right = reference(x, gather_values(layer.weight(), tp), gather_values(*layer.bias(), tp), dy);
    const at::Tensor input = leaf(comm::select_shard(x, -1, tp)), out = layer.forward(input);
    EXPECT_LT(relative_difference(out, local(right.out, tp, sequence_parallel)), kTolerance);
    const at::Tensor dx = torch::autograd::grad({out}, {input}, {local(dy, tp, sequence_parallel)})[0];
    EXPECT_LT(relative_difference(dx, comm::select_shard(right.dx, -1, tp)), kTolerance);
    EXPECT_LT(relative_difference(whole_gradient(layer.weight(), tp), right.dweight), kTolerance);
    EXPECT_LT(relative_difference(whole_gradient(*layer.bias(), tp), right.dbias), kTolerance);
  });
}

TEST(VocabParallelEmbeddingRanks, EqualsALookUpAndItsGradient) {
  for_each_layout([](const comm::Group& tp, bool sequence_parallel) {
    const int64_t vocab = 13;
    const nn::LayerContext context = layer_context(tp, sequence_parallel);
    const nn::VocabularyShard part =
        nn::make_vocabulary_shard(vocab, config::padded_vocab_size(vocab, 2, tp.size()), tp.size(), tp.index());
    nn::VocabParallelEmbedding layer(nn::make_vocabulary_param({"words", vocab, 6}, part, context), part, context);
    give_main_grad({&layer.weight()});
    const at::Tensor tokens = (at::arange(24, at::kLong) * 5 % vocab).view({3, 8}), dy = sample({8, 3, 6}, 2);
    const at::Tensor table = leaf(gather_values(layer.weight(), tp));
    const at::Tensor expected = table.index({tokens.t().contiguous()});
    EXPECT_TRUE(at::equal(layer.apply(tokens), local(expected, tp, sequence_parallel)));
    layer.add_gradient(local(dy, tp, sequence_parallel), tokens);
    EXPECT_LT(
        relative_difference(whole_gradient(layer.weight(), tp), torch::autograd::grad({expected}, {table}, {dy})[0]),
        kTolerance);
    if (part.local_rows > part.valid_rows) { EXPECT_EQ(largest(layer.weight().data.slice(0, part.valid_rows)), 0.0); }
  });
}

TEST(CrossEntropyRanks, LossAndGradientSlicesAreThoseOfOneRankWithSmoothingToo) {
  const int64_t vocab = 21;  // tp 4 and padding to 8 per rank: the last rank has no real column
  const at::Tensor logits = sample({5, 2, vocab}, 1) * 5,
                   targets = (at::arange(10, at::kLong) * 7 % vocab).view({5, 2}), dy = sample({5, 2}, 2);
  for (const double smoothing : {0.0, 0.15}) {
    const at::Tensor one = leaf(logits);
    const at::Tensor log_p = at::log_softmax(one, -1);
    const double s = smoothing * vocab / (vocab - 1);
    const at::Tensor expected = -(1 - s) * log_p.gather(2, targets.unsqueeze(2)).squeeze(2) - s * log_p.mean(-1);
    const at::Tensor gradient = torch::autograd::grad({expected}, {one}, {dy})[0];
    for (const int tp : {1, 2, 4}) {
      run_ranks(tp, [&](const comm::World& world) {
        const comm::Group& group = world.groups().tp;
        const nn::VocabularyShard part =
            nn::make_vocabulary_shard(vocab, config::padded_vocab_size(vocab, 8, tp), tp, group.index());
        at::Tensor mine = at::full({5, 2, part.local_rows}, 1e3, at::kDouble);  // padding would win if it counted
        mine.narrow(2, 0, part.valid_rows).copy_(logits.narrow(2, std::min(part.begin, vocab), part.valid_rows));
        mine.requires_grad_(true);
        const at::Tensor loss = nn::vocab_parallel_cross_entropy(mine, targets, {group, part, vocab, smoothing, {}});
        EXPECT_LT(relative_difference(loss, expected), kTolerance);
        const at::Tensor got = torch::autograd::grad({loss}, {mine}, {dy})[0];
        EXPECT_LT(relative_difference(got.narrow(2, 0, part.valid_rows),
                                      gradient.narrow(2, std::min(part.begin, vocab), part.valid_rows)),
                  kTolerance);
        EXPECT_EQ(largest(got.slice(2, part.valid_rows)), 0.0);
      });
    }
  }
}

TEST(InitialisationRanks, EveryLayoutStartsFromTheSameNormalValues) {
  const nn::Param one = nn::make_param({"w", {24, 20}, {}, nn::Init::normal}, layer_context());
  EXPECT_NEAR(one.data.mean().item<double>(), 0.0, 0.3 * 4 / std::sqrt(480.0));
  EXPECT_NEAR(one.data.std().item<double>(), 0.3, 0.3 * 4 / std::sqrt(2 * 480.0));
  const nn::Param other = nn::make_param({"v", {24, 20}, {}, nn::Init::normal}, layer_context());
  EXPECT_FALSE(at::equal(one.data, other.data));
  for (const int dim : {0, 1}) {
    run_ranks(4, [&](const comm::World& world) {
      const comm::Group& tp = world.groups().tp;
      const nn::Param part = nn::make_param(
          {"w",
           {24, 20},
           {.cuts = {topology::even_shard(dim, topology::Axis::tp, dim == 0 ? 24 : 20, 4, tp.index())}},
           nn::Init::normal},
          layer_context(tp));
      EXPECT_TRUE(at::equal(part.data, comm::select_shard(one.data, dim, tp)));
    });
  }
}

TEST(Initialisation, FillFollowsTheUnshardedIndexThroughAllRangesAndZeroesPadding) {
  nn::Param param =
      nn::make_param({"w", {10, 3}, {.cuts = {{0, topology::Axis::tp, {{0, 2, 2}, {2, 7, 1}}, 4}}}, nn::Init::normal},
                     layer_context());
  nn::fill(param, [](int64_t index) { return static_cast<double>(index) + 1; });
  const at::Tensor all = at::arange(1, 31, at::kDouble).view({10, 3});
  EXPECT_TRUE(
      at::equal(param.data, at::cat({all.narrow(0, 2, 2), all.narrow(0, 7, 1), at::zeros({1, 3}, at::kDouble)})));
}

}  // namespace
}  // namespace metroplex::test::parallel_layers_ranks_test

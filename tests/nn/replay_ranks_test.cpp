// Replaying recorded kernels and collectives in order on other inputs gives the result of a run on those inputs.
#include <ATen/core/grad_mode.h>

#include <optional>

#include "nn/activation.h"
#include "nn/dropout_norm.h"
#include "nn/rope.h"
#include "nn/tools.h"
#include "support/run_ranks.h"
#include "support/operation_recorder.h"

namespace metroplex::test::replay_ranks_test {
namespace {

// Applies only kernels and collectives of a group to x [s, b, h]; no libtorch operator that a replay would have to
// repeat.
struct Chain {
  explicit Chain(const nn::LayerContext& context)
      : context(context), first({"a", 24, false, 1e-5, {}}, context), second({"b", 24, true, 1e-5, {}}, context) {
    batch.counters.samples = nn::make_sample_counters(0, at::tensor({7, 8}, at::kLong));
  }
  at::Tensor run(const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    const at::Tensor normed = first.apply(x, nullptr);
    const at::Tensor active =
        nn::apply_activation(normed, nullptr, {nn::activation_kind("gelu"), false, context.target}, nullptr);
    comm::all_reduce(active, context.tp);
    const at::Tensor heads = active.view({6, 2, 3, 8});
    rope().rotate(heads, {2, {}, 0}, 1);
    const nn::BiasDropoutAdd add{{5, 2, nn::RandomSite::mlp_output, 0.3, context.target}, nullptr, {0}};
    const nn::ResidualAndNorm sum = nn::bias_dropout_add_norm(active, x, {add, &second, saving}, batch);
    at::Tensor all = at::empty({12, 2, 24}, x.options());
    comm::all_gather_into_async(all, sum.normed.x, context.tp).wait();
    return all;
  }
  nn::RopeTable& rope() {
    if (!table) table.emplace(8, 100.0, context.target);
    return *table;
  }
  nn::LayerContext context;
  nn::Norm first, second;
  nn::SavePolicy saving;
  nn::Microbatch batch;
  std::optional<nn::RopeTable> table;
};

TEST(ReplayRanks, OnOtherInputsGivesTheBitsOfARun) {
  run_ranks(2, [](const comm::World& world) {
    OperationRecorder recorder;
    const comm::World watched = world.recorded(recorder);
    nn::LayerContext context = layer_context(watched.groups().tp);
    context.target = watched.target();
    const at::Tensor x = sample({6, 2, 24}, 1 + static_cast<uint64_t>(world.rank())),
                     other = sample({6, 2, 24}, 11 + static_cast<uint64_t>(world.rank()));
    const at::Tensor before = Chain(layer_context(world.groups().tp)).run(x),
                     wanted = Chain(layer_context(world.groups().tp)).run(other);
    Chain chain(context);
    const at::Tensor out = chain.run(x);
    EXPECT_TRUE(at::equal(out, before));
    EXPECT_FALSE(at::equal(out, wanted));
    EXPECT_EQ(recorder.operations().size(), 4u + 2 * 2);  // kernels, calls and their waits
    x.copy_(other);
    recorder.replay();
    EXPECT_TRUE(at::equal(out, wanted));
  });
}

}  // namespace
}  // namespace metroplex::test::replay_ranks_test

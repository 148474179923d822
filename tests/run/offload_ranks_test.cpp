// Optimizer state and step on the CPU (optim.optimizer_cpu_offload). Checks equal bits to a run without it in every
// ZeRO stage and number format, across checkpoints, and the formula's bytes.
#include "base/error.h"
#include "run/legs.h"
#include "forecast/memory_report.h"

namespace metroplex::test::offload_ranks_test {
namespace {

constexpr const char* kStrategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

struct OffloadCase {
  int stage = 0;
  std::string dtype = "fp32", moments = "fp32";
  bool remainders = false;
};

std::string words(const OffloadCase& form) {
  return base::concat("ZeRO ", form.stage, " ", form.dtype, " moments ", form.moments,
                      form.remainders ? " remainders" : "");
}

config::Config with(const OffloadCase& form, bool offload) {
  config::Config config = small_gpt();
  config.precision.params_dtype = form.dtype;
  config.precision.initial_loss_scale = 1024;
  config.parallel.data_parallel_sharding_strategy = kStrategies[form.stage];
  config.optim.exp_avg_dtype = config.optim.exp_avg_sq_dtype = form.moments;
  config.optim.store_param_remainders = form.remainders;
  config.optim.optimizer_cpu_offload = offload;
  return config;
}

void expect_same(const Outcome& got, const Outcome& wanted) {
  EXPECT_EQ(got.losses, wanted.losses);
  EXPECT_EQ(got.norms, wanted.norms);
  ASSERT_EQ(got.state.size(), wanted.state.size());
  for (const auto& [name, tensor] : wanted.state) EXPECT_TRUE(at::equal(got.state.at(name), tensor)) << name;
}

TEST(OptimizerOffloadRanks, EveryZeroStageAndFormatHasTheBitsOfTheRunWithoutIt) {
  std::vector<OffloadCase> forms;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const char* dtype : {"fp32", "fp64", "bf16", "fp16"}) forms.push_back({stage, dtype});
    forms.push_back({stage, "bf16", "8bit", true});
    forms.push_back({stage, "fp32", "bf16"});
  }
  for (const OffloadCase& form : forms) {
    SCOPED_TRACE(words(form));
    const TestLayout layout{.dp = 2};
    expect_same(run_leg(with(form, true), {layout, "", "", 0, 3}),
                run_leg(with(form, false), {layout, "", "", 0, 3}));
  }
}

TEST(OptimizerOffloadRanks, LayoutsOfAllKindsHaveTheBitsOfTheRunWithoutIt) {
  for (const TestLayout& layout :
       {TestLayout{.tp = 2, .pp = 2, .dp = 2, .sp = true}, TestLayout{.pp = 2, .vpp = 2, .dp = 2}}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const OffloadCase form{stage, "bf16"};
      SCOPED_TRACE(base::concat(words(form), " tp ", layout.tp, " pp ", layout.pp, " vpp ", layout.vpp));
      expect_same(run_leg(with(form, true), {layout, "", "", 0, 2}),
                  run_leg(with(form, false), {layout, "", "", 0, 2}));
    }
  }
}

TEST(OptimizerOffloadRanks, ACheckpointGoesOnWithItOrWithoutIt) {
  for (const OffloadCase& form : {OffloadCase{1, "bf16"}, OffloadCase{3, "bf16", "8bit", true},
                                  OffloadCase{0, "fp16"}, OffloadCase{2, "fp32"}}) {
    SCOPED_TRACE(words(form));
    const TestLayout layout{.dp = 2};
    const Outcome whole = run_leg(with(form, false), {layout, "", "", 0, 4});
    for (const bool first : {false, true}) {
      const Folder folder;
      run_leg(with(form, first), {layout, "", folder.path(), 0, 2});
      const Outcome rest = run_leg(with(form, !first), {layout, folder.path(), "", 2, 4});
      for (const auto& [name, tensor] : whole.state) EXPECT_TRUE(at::equal(rest.state.at(name), tensor)) << name;
    }
  }
}

TEST(OptimizerOffloadRanks, TheHostHoldsWhatTheFormulaSays) {
  for (const OffloadCase& form : {OffloadCase{0, "fp32"}, OffloadCase{1, "bf16"},
                                  OffloadCase{2, "bf16", "8bit", true}, OffloadCase{3, "fp16"}}) {
    SCOPED_TRACE(words(form));
    const TestLayout layout{.dp = 2};
    const config::Config config = cut(with(form, true), layout);
    run_sharded(config, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      const replay::MemoryUse predicted = forecast::predicted_memory(assembly->process, 4).use;
      const optim::Optimizer::Bytes bytes = assembly->optimization.optimizer->bytes();
      EXPECT_EQ(bytes.host, predicted.host);
      EXPECT_GT(bytes.host, 0);
      EXPECT_EQ(bytes.main_params + bytes.moments + predicted.main_parameters + predicted.moments, 0);
    });
  }
}

}  // namespace
}  // namespace metroplex::test::offload_ranks_test

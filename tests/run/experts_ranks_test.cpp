// Models with experts: options that must change no bit, checkpoints that move across layouts, dropped tokens, values
// that are counted once, and predicted memory.
#include <gtest/gtest.h>

#include <map>

#include "moe/load_meter.h"
#include "support/everyday.h"
#include "support/poisoned.h"
#include "support/without_onednn.h"
#include "run/legs.h"
#include "run/memory_watch.h"
#include "run/memory_yaml.h"
#include "run/small_experts.h"

namespace metroplex::test::experts_ranks_test {
namespace {

struct Grid {
  TestLayout layout;
  int64_t etp = 1, ep = 1;
  const char* dispatcher = "auto";
  const char* sharding = "no_shard";
};

config::Config on(config::Config config, const Grid& grid) {
  config.parallel.expert_tensor_parallel_size = grid.etp;
  config.parallel.expert_model_parallel_size = grid.ep;
  config.parallel.data_parallel_sharding_strategy = grid.sharding;
  config.model.moe_token_dispatcher_type = grid.dispatcher;
  if (config.model.moe_token_dispatcher_type == config::TokenDispatcher::hierarchical)
    config.parallel.expert_ranks_per_node = 2;
  return config;
}

std::string words(const Grid& g) {
  return base::concat("tp ", g.layout.tp, " pp ", g.layout.pp, " vpp ", g.layout.vpp, " dp ", g.layout.dp, " etp ",
                      g.etp, " ep ", g.ep, " ", g.dispatcher, " ", g.sharding);
}

const Grid kGrids[] = {{{}},
                       {{.dp = 4}, 1, 4, "alltoall", "optim"},
                       {{.dp = 4}, 2, 2, "allgather", "optim_grads"},
                       {{.tp = 2, .dp = 2, .sp = true}, 1, 4, "hierarchical", "optim_grads_params"},
                       {{.pp = 2, .vpp = 2, .dp = 2}, 1, 2, "alltoall", "no_shard"},
                       {{.tp = 2, .pp = 2, .dp = 2, .sp = true}, 2, 2, "alltoall", "optim_grads_params"}};

void expect_same_bits(const Outcome& got, const Outcome& wanted) {
  EXPECT_EQ(got.losses, wanted.losses);
  EXPECT_EQ(got.norms, wanted.norms);
  expect_equal_state(got.state, wanted.state);
}

// Losses to 1e-12 and parameters to 1e-10 (reasons in verify/verify.h).
void expect_close(const Outcome& got, const Outcome& wanted) {
  ASSERT_EQ(got.losses.size(), wanted.losses.size());
  for (size_t i = 0; i < wanted.losses.size(); ++i)
    EXPECT_NEAR(got.losses[i], wanted.losses[i], 1e-12 * wanted.losses[i]);
  ASSERT_EQ(got.state.size(), wanted.state.size());
  for (const auto& [name, tensor] : wanted.state)
    EXPECT_LE((got.state.at(name) - tensor).abs().max().item<double>(), 1e-10) << name;
}

// Losses, drops, counts and the running counts of the global loss are updated once, even if a forward runs again.
TEST(ExpertsRanks, RecomputeAndOffloadGiveTheBitsOfKeepingAll) {
  const std::string forms[] = {full_recompute("recompute_method: uniform, recompute_num_layers: 1"),
                               full_recompute("recompute_method: uniform, recompute_num_layers: 2"),
                               full_recompute("recompute_method: block, recompute_num_layers: 1"),
                               selective_recompute("moe"),
                               selective_recompute("moe_act"),
                               selective_recompute("moe, shared_experts, core_attn, mlp, layernorm"),
                               selective_recompute("moe_act, activation, layernorm"),
                               "memory: {offload_activations: file}\n"};
  struct Case {
    const Grid* grid;
    bool drops;
    std::string form;
  };
  std::vector<Case> all;
  for (const Grid& grid : kGrids) {
    for (const bool drops : {false, true}) {
      for (const std::string& form : forms) {
        const bool one_layer = grid.layout.pp * grid.layout.vpp == 4;  // in each chunk
        if (!one_layer || form.find("num_layers: 2") == std::string::npos) all.push_back({&grid, drops, form});
      }
    }
  }
  std::map<std::pair<const Grid*, bool>, Outcome> kept;
  for (const auto& [grid, drops, form] : test::sample_cases(all, 2)) {
    const auto run = [&](const std::string& yaml) {
      config::Config config = small_experts("", yaml);
      if (drops) config.model.moe_expert_capacity_factor = 1.0;
      return run_leg(on(config, *grid), {grid->layout, "", "", 0, 2});
    };
    SCOPED_TRACE(words(*grid) + (drops ? " with drops " : " ") + form);
    const auto [place, first] = kept.try_emplace({grid, drops});
    if (first) place->second = run("");
    expect_same_bits(run(form), place->second);
  }
}

// ep 4 x etp 1 becomes ep 2 x etp 2, then one rank, including the expert bias and Adam's moments.
TEST(ExpertsRanks, ACheckpointGoesOnInAnyOtherLayout) {
  config::Config config = small_experts();
  config.model.moe_router_load_balancing_type = "aux_loss,seq_aux_loss";  // the global loss depends on dp
  config.model.moe_aux_loss_coeff = "0.02,0.01";
  const Outcome straight = run_leg(on(config, {}), {{}, "", "", 0, 5});
  const Grid wander[] = {{{.dp = 4}, 1, 4, "alltoall", "optim"},
                         {{.tp = 2, .dp = 2, .sp = true}, 2, 2, "allgather", "optim_grads_params"},
                         {{}},
                         {{.tp = 2, .pp = 2, .dp = 2, .sp = true}, 1, 4, "alltoall", "optim_grads"},
                         {{.pp = 2, .vpp = 2, .dp = 4}, 2, 2, "hierarchical", "no_shard"}};
  const Folder folder;
  std::string load;
  Outcome last;
  std::vector<double> losses;
  for (int64_t step = 0; step < 5; ++step) {
    SCOPED_TRACE(words(wander[step]));
    const std::string save = folder.at("step" + std::to_string(step));
    last = run_leg(on(config, wander[step]), {wander[step].layout, load, save, step, step + 1});
    losses.insert(losses.end(), last.losses.begin(), last.losses.end());
    load = save;
  }
  last.losses = losses;
  expect_close(last, straight);
  EXPECT_GT(last.state.at("decoder.layers.2.mlp.router.expert_bias").abs().max().item<double>(), 1e-3);
}

// The capacity is per rank's tokens. Layouts that do not split a microbatch drop the same tokens with every
// dispatcher, padded or not.
TEST(ExpertsRanks, DroppedTokensAreTheSameInEveryLayoutThatKeepsMicrobatchesWhole) {
  for (const char* policy : {"probs", "position"}) {
    config::Config config = small_experts();
    config.model.moe_router_load_balancing_type = "aux_loss";
    config.model.moe_aux_loss_coeff = "0.02";
    config.model.moe_expert_capacity_factor = 0.75;
    config.model.moe_token_drop_policy = policy;
    const Outcome one = run_leg(on(config, {}), {{}, "", "", 0, 3});
    config::Config dropless = config;
    dropless.model.moe_expert_capacity_factor = 0;
    EXPECT_NE(run_leg(on(dropless, {}), {{}, "", "", 0, 3}).losses, one.losses);
    for (const Grid& grid : {Grid{{.dp = 4}, 1, 4, "alltoall"}, Grid{{.dp = 4}, 2, 2, "allgather"},
                             Grid{{.pp = 2, .dp = 2}, 2, 1, "hierarchical"}, Grid{{.dp = 2}, 1, 2, "alltoall"}}) {
      for (const bool pads : {false, true}) {
        SCOPED_TRACE(words(grid) + (pads ? " padded " : " ") + policy);
        const NanFillGuard poisoned;
        config.model.moe_pad_expert_input_to_capacity = pads;
        expect_close(run_leg(on(config, grid), {grid.layout, "", "", 0, 3}), one);
      }
    }
  }
}

TEST(ExpertsRanks, TheGlobalLossIsThatOfOneRankAtEqualDataParallelSize) {
  const Outcome one = run_leg(on(small_experts(), {{.dp = 2}}), {{.dp = 2}, "", "", 0, 3});
  for (const Grid& grid : {Grid{{.pp = 2, .dp = 2}, 1, 2}, Grid{{.tp = 2, .dp = 2, .sp = true}, 1, 4, "alltoall"},
                           Grid{{.tp = 2, .pp = 2, .dp = 2, .sp = true}, 2, 2, "allgather", "optim"}}) {
    SCOPED_TRACE(words(grid));
    expect_close(run_leg(on(small_experts(), grid), {grid.layout, "", "", 0, 3}), one);
  }
}

TEST(ExpertsRanks, PerTokenLossesAndOverlappedSharedExpertsChangeNothingOfLayouts) {
  config::Config config = small_experts();
  config.model.moe_router_load_balancing_type = "aux_loss";
  config.model.moe_aux_loss_coeff = "0.02";
  for (const bool per_token : {false, true}) {
    config.train = small_gpt().train;
    config.train.calculate_per_token_loss = per_token;
    const Outcome one = run_leg(on(config, {}), {{}, "", "", 0, 3});
    for (const Grid& grid :
         {Grid{{.dp = 4}, 1, 4, "alltoall"}, Grid{{.tp = 2, .dp = 2, .sp = true}, 2, 2, "hierarchical"}}) {
      SCOPED_TRACE(words(grid));
      config::Config overlapped = on(config, grid);
      overlapped.model.moe_shared_expert_overlap = true;
      expect_close(run_leg(overlapped, {grid.layout, "", "", 0, 3}), one);
    }
  }
}

// The same routing for grouped and sequential experts and for every dispatcher.
TEST(ExpertsRanks, SequentialExpertsAreTheGroupedOnes) {
  config::Config config = small_experts();
  const Grid grid{{.dp = 2}, 1, 2, "alltoall"};
  const Outcome grouped = run_leg(on(config, grid), {grid.layout, "", "", 0, 3});
  config.model.moe_grouped_gemm = false;
  expect_close(run_leg(on(config, grid), {grid.layout, "", "", 0, 3}), grouped);
}

// An overflow on one rank suspends the updates of all ranks until the host reads it, including steps already
// enqueued. The repeated step equals the original one: running counts, bias and load count it once.
TEST(ExpertsRanks, AStepThatOverflowedIsTakenAgainAsIfItHadNotBeen) {
  for (const Grid& grid : {kGrids[1], kGrids[4]}) {
    for (const char* form : {"",
                             "memory: {recompute_granularity: full, recompute_method: uniform,"
                             " recompute_num_layers: 1}\n"}) {
      SCOPED_TRACE(words(grid) + " " + form);
      config::Config config = on(small_experts("", form), grid);
      config.train.log_experts_interval = 1;
      config = cut(config, grid.layout);
      std::map<std::string, at::Tensor> wanted;
      double wanted_loss = 0;
      const auto loads = [](const step::Assembly& assembly) {
        std::vector<at::Tensor> counts;
        for (const auto& [layer, load] : assembly.model.experts->meter->layers())
          counts.push_back(load.counts.clone());
        return counts;
      };
      std::vector<std::vector<at::Tensor>> wanted_loads(8);
      for (const bool overflows : {false, true}) {
        run_sharded(config, grid.layout, [&](const comm::World& world) {
          const auto assembly = step::assemble(config, world, kVocab);
          step_at(*assembly, 0);
          const auto before = whole_state(*assembly);
          const auto rank = static_cast<size_t>(world.rank());
          if (overflows) {
            if (world.rank() == 1) assembly->step_buffers.flags[kernels::kOverflow] = 1;
            const auto batches = make_batches(*assembly, 1), next = make_batches(*assembly, 2);
            const step::StepInput input{batches, 2, 8, false, {}}, behind{next, 3, 16, false, {}};
            const step::EnqueuedStep first = step::enqueue_step(*assembly, input),
                                     second = step::enqueue_step(*assembly, behind);
            EXPECT_EQ(assembly->optimization.step_state.read().updates, 0);
            const step::StepOutcome outcome = step::read_outcome(*assembly, input, first);
            EXPECT_TRUE(outcome.overflow && !outcome.updated);
            EXPECT_NE(outcome.skipped.find("on 1 ranks"), std::string::npos) << outcome.skipped;
            EXPECT_TRUE(step::read_outcome(*assembly, behind, second).overflow) << "the overflow flag was not reset";
            assembly->model.families.finish_gathers();
            expect_equal_state(whole_state(*assembly), before);
          }
          const step::StepOutcome outcome = step_at(*assembly, 1);
          EXPECT_TRUE(outcome.updated && !outcome.overflow);
          const auto state = whole_state(*assembly);
          if (!overflows) {
            wanted_loads[rank] = loads(*assembly);
            if (world.rank() == 0) wanted = state, wanted_loss = outcome.loss;
            return;
          }
          EXPECT_EQ(outcome.loss, wanted_loss);
          if (world.rank() == 0) expect_equal_state(state, wanted);
          const std::vector<at::Tensor> got = loads(*assembly);
          ASSERT_EQ(got.size(), wanted_loads[rank].size());
          for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(wanted_loads[rank][i])) << i;
        });
      }
    }
  }
}

TEST(ExpertsRanks, OnlyForwardsThatCountAreCounted) {
  for (const char* recompute : {"",
                                "memory: {recompute_granularity: full, recompute_method: uniform,"
                                " recompute_num_layers: 1}\n"}) {
    config::Config config = on(small_experts("", recompute), {});
    config.train.log_experts_interval = 1;
    config = cut(config, {});
    run_sharded(config, {}, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      ASSERT_TRUE(assembly->model.experts && assembly->model.experts->meter);
      const auto counted = [&] {
        int64_t sum = 0;
        for (const auto& [layer, load] : assembly->model.experts->meter->layers())
          sum += load.tokens.sum().item<int64_t>();
        return sum;
      };
      std::vector<nn::Microbatch> evaluated = make_batches(*assembly, 0);
      for (nn::Microbatch& batch : evaluated) batch.training = false;
      step::evaluate_step(*assembly, evaluated);
      EXPECT_EQ(counted(), 0);
      step_at(*assembly, 0);
      const config::Train& train = config.train;
      EXPECT_EQ(counted(), 3 * 2 * train.global_batch_size * train.seq_length);  // layers, top-k
    });
  }
}

// If shapes do not depend on the routing, the memory prediction of a step is exact to the byte.
TEST(ExpertsRanks, MemoryIsPredictedToTheByteWhereShapesAreStatic) {
  const WithoutOneDnn without;
  struct Case {
    Grid grid;
    std::string yaml;
    double capacity = 0;
    bool pads = false;
  };
  const Case cases[] = {{{}, "", 0, false},
                        {{}, kBf16, 0, false},
                        {{}, "precision: {params_dtype: fp64}\n", 0, false},
                        {{}, selective_recompute("moe"), 0, false},
                        {{}, selective_recompute("moe_act, shared_experts"), 0, false},
                        {{}, full_recompute("recompute_method: uniform, recompute_num_layers: 1"), 0, false},
                        {{}, "memory: {offload_activations: file}\n", 0, false},
                        {{}, "", 1.25, false},
                        {{{.dp = 2}, 1, 2, "allgather", "optim"}, "", 0, false},
                        {{{.dp = 4}, 2, 2, "allgather", "optim_grads_params"}, kBf16, 0, false},
                        {{{.dp = 4}, 2, 2, "alltoall", "optim_grads"}, "", 1.0, true},
                        {{{.dp = 4}, 2, 2, "static_buffer", "optim"}, kBf16, 0, false},
                        {{{.tp = 2, .pp = 2, .dp = 2, .sp = true}, 1, 4, "static_buffer"}, "", 0, false},
                        {{{.tp = 2, .pp = 2, .dp = 2, .sp = true}, 1, 4, "allgather"}, "", 0, false}};
  for (const Case& test_case : cases) {
    SCOPED_TRACE(words(test_case.grid) + " " + test_case.yaml + base::concat(" capacity ", test_case.capacity));
    config::Config config = small_experts("", test_case.yaml);
    if (!test_case.yaml.empty()) config.precision = config::parse(test_case.yaml).precision;
    else config.precision.params_dtype = "fp32";
    config.train.micro_batch_size = 2;
    config.train.seq_length = 32;
    config.model.max_position_embeddings = 32;
    config.train.global_batch_size = 16;
    config.model.moe_expert_capacity_factor = test_case.capacity;
    config.model.moe_pad_expert_input_to_capacity = test_case.pads;
    if (std::string(test_case.grid.dispatcher) == "static_buffer") config.model.moe_expert_rank_capacity_factor = 1.5;
    config = cut(on(config, test_case.grid), test_case.grid.layout);
    run_sharded(config, test_case.grid.layout, [&](const comm::World& world) {
      SCOPED_TRACE(words(test_case.grid) + test_case.yaml + base::concat(" rank ", world.rank()));
      expect_predicted_memory(config, kVocab, world);
    });
  }
}

}  // namespace
}  // namespace metroplex::test::experts_ranks_test

// Three families of parameters train on every layout of up to 8 ranks and in every ZeRO stage as on one rank. Checks
// norms, clipped updates and buffers (state without gradient).
#include "base/error.h"
#include "support/everyday.h"
#include "run/posix_disk.h"
#include "run/support.h"
#include "run/toy_experts.h"

namespace metroplex::test::families_ranks_test {
namespace {

// Relative. A gradient is a sum over at most 16 samples of 8 tokens, each term rounded by 2^-53: 1.4e-14 per step,
// 6e-14 in four steps. The measured error is 2e-15. A relative error of 1e-9 in the learning rate fails the test.
constexpr double kRoundoff = 1e-13;
// Five Newton-Schulz steps with a slope of at most 3.44 each amplify the direction's error by 480. It enters a
// parameter of size 0.1 with lr 0.01 times the scale sqrt(8): 480 * 1.4e-14 * 0.28. The measured error
// is 6e-15.
constexpr double kMuonRoundoff = 2e-12;
// Twelve roundings to fp32 by 2^-24: the router's gradient in each microbatch's reduction, and its parameter, in
// three steps. The measured error is 1.1e-7, in the router itself.
constexpr double kRouterRoundoff = 7e-7;

constexpr const char* kStrategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

struct LayoutOptions {
  int64_t tp = 1, pp = 1, dp = 1, ep = 1, etp = 1;
  int stage = 0;
  int64_t instances = 1, vpp = 1;
  int64_t ranks() const { return tp * pp * dp; }
};

std::string words(const LayoutOptions& h) {
  return base::concat("tp ", h.tp, " pp ", h.pp, " dp ", h.dp, " ep ", h.ep, " etp ", h.etp, " ZeRO ", h.stage,
                      " instances ", h.instances, " vpp ", h.vpp);
}

config::Config toy_config(const LayoutOptions& how) {
  config::Config config = small_gpt();
  config.model.hidden_size = 8;
  config.train.global_batch_size = 16;
  config.train.log_num_zeros_in_grad = true;
  config.optim.optimizer = "sgd";
  config.optim.lr = 0.5;
  config.optim.lr_decay_style = "constant";
  config.optim.clip_grad = 0.05;
  config::Parallel& parallel = config.parallel;
  parallel.tensor_model_parallel_size = how.tp;
  parallel.pipeline_model_parallel_size = how.pp;
  parallel.virtual_pipeline_model_parallel_size = how.vpp;
  parallel.overlap_p2p_comm = how.vpp > 1;
  parallel.expert_model_parallel_size = how.ep;
  parallel.expert_tensor_parallel_size = how.etp;
  parallel.sequence_parallel = how.tp > 1;
  parallel.ddp_bucket_size = 100;
  parallel.data_parallel_sharding_strategy = kStrategies[how.stage];
  parallel.num_distributed_optimizer_instances = how.instances;
  return config::resolved(config, how.ranks());
}

struct Leg {
  std::string load, save;
  int64_t from = 0, to = 3;
};

struct Result {
  std::map<std::string, at::Tensor> state;
  std::vector<double> losses, norms, balance;  // the last is the loss term of the routers
  std::vector<int64_t> zeros;
  size_t families = 0;
};

Result trained(config::Config config, const LayoutOptions& how, at::ScalarType router, const Leg& leg = {}) {
  SCOPED_TRACE(words(how));
  config.checkpoint.load = leg.load;
  config.checkpoint.save = leg.save;
  Result result;
  run_sharded(config, TestLayout{how.tp, how.pp, how.vpp, how.dp, how.tp > 1}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab, false, toy_experts(world, router));
    assembly->model.extra_border_values = toy_border(config);
    if (!leg.load.empty()) { EXPECT_TRUE(run::load_state(*assembly, leg.load).loaded); }
    Result mine;
    mine.families = assembly->model.families.all().size();
    for (int64_t step = leg.from; step < leg.to; ++step) {
      const step::StepOutcome outcome = step_at(*assembly, step);
      mine.losses.push_back(outcome.loss);
      mine.norms.push_back(outcome.grad_norm);
      mine.balance.push_back(outcome.terms.at("balance"));
      mine.zeros.push_back(outcome.num_zeros);
    }
    assembly->model.families.finish_gathers();
    mine.state = whole_state(*assembly);
    if (!leg.save.empty()) {
      const auto saved = run::save_state(*assembly, {leg.to, leg.to * config.train.global_batch_size, 0});
      EXPECT_TRUE(saved.saved) << saved.problem;
    }
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

void expect_close(const Result& got, const Result& want, double tolerance) {
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * std::abs(want.losses[i])) << "loss of step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], tolerance * want.norms[i]) << "norm of step " << i;
    EXPECT_NEAR(got.balance[i], want.balance[i], tolerance * want.balance[i]) << "loss term of step " << i;
  }
  EXPECT_EQ(got.zeros, want.zeros);
  ASSERT_EQ(got.state.size(), want.state.size());
  for (const auto& [name, tensor] : want.state) {
    ASSERT_TRUE(got.state.count(name)) << name;
    const double off = (got.state.at(name) - tensor).abs().max().item<double>();
    EXPECT_LE(off, tolerance * tensor.abs().max().item<double>()) << name;
  }
}

std::vector<LayoutOptions> layouts() {
  return {{.dp = 2, .ep = 2},
          {.dp = 4, .ep = 2},
          {.dp = 8, .ep = 4},
          {.tp = 2, .dp = 1, .ep = 2},
          {.tp = 2, .dp = 1, .ep = 1, .etp = 2},
          {.tp = 2, .dp = 2, .ep = 4},
          {.tp = 2, .dp = 2, .ep = 2, .etp = 2},
          {.tp = 2, .dp = 4, .ep = 4},
          {.tp = 2, .dp = 4, .ep = 2, .etp = 2},
          {.tp = 4, .dp = 2, .ep = 2, .etp = 1},
          {.pp = 2, .dp = 2, .ep = 2},
          {.pp = 2, .dp = 4, .ep = 2},
          {.tp = 2, .pp = 2, .dp = 2, .ep = 2},
          {.tp = 2, .pp = 2, .dp = 2, .ep = 1, .etp = 2}};
}

std::vector<LayoutOptions> in_every_stage(const std::vector<LayoutOptions>& cuts) {
  std::vector<LayoutOptions> all;
  for (LayoutOptions how : cuts) {
    for (how.stage = 0; how.stage < 4; ++how.stage) all.push_back(how);
  }
  return all;
}

// Every split of up to 8 ranks into tp, pp, virtual stages and dp, and of the same ranks into ep and etp; the ZeRO
// stages alternate.
std::vector<LayoutOptions> all_layouts() {
  std::vector<LayoutOptions> all;
  for (int64_t tp = 1; tp <= 4; tp *= 2) {
    for (int64_t pp = 1; tp * pp <= 8 && pp <= 4; pp *= 2) {
      for (int64_t vpp = 1; vpp <= (pp == 2 ? 2 : 1); ++vpp) {
        for (int64_t dp = 1; tp * pp * dp <= 8; dp *= 2) {
          for (int64_t ep = 1; ep <= std::min(tp * dp, kExperts); ep *= 2) {
            for (int64_t etp = 1; etp <= 2 && tp * dp % (ep * etp) == 0; etp *= 2)
              all.push_back({tp, pp, dp, ep, etp, static_cast<int>(all.size() % 4), 1, vpp});
          }
        }
      }
    }
  }
  return all;
}

TEST(ParamFamilies, TheComparisonSeesARateThatIsABillionthOff) {
  config::Config config = toy_config({});
  const Result right = trained(config, {}, at::kDouble);
  config.optim.lr *= 1 + 1e-9;
  const Result wrong = trained(config, {}, at::kDouble);
  EXPECT_GT(std::abs(wrong.losses.back() / right.losses.back() - 1), 10 * kRoundoff);
}

// A router in fp64 is an ordinary dense parameter, and nothing is rounded.
TEST(ParamFamilies, DenseAndExpertParametersTrainAsOnOneRankInFloat64) {
  const Result one = trained(toy_config({}), {}, at::kDouble);
  EXPECT_EQ(one.families, 2u);
  EXPECT_GT(one.norms[0], 0.05) << "clipping takes part";
  for (const LayoutOptions& how : sample_cases(in_every_stage(layouts()), 4)) {
    SCOPED_TRACE(words(how));
    expect_close(trained(toy_config(how), how, at::kDouble), one, kRoundoff);
  }
}

TEST(ParamFamilies, BlocksOfFourSegmentsTrainOnEveryLayoutOfUpToEightRanksAsOnOneRank) {
  const Result one = trained(toy_config({}), {}, at::kDouble);
  EXPECT_GT(one.balance[0], 0.0);
  const std::vector<LayoutOptions> all = all_layouts();
  ASSERT_GT(all.size(), 60u);
  for (const LayoutOptions& how : sample_cases(all, 5)) {
    SCOPED_TRACE(words(how));
    expect_close(trained(toy_config(how), how, at::kDouble), one, kRoundoff);
  }
}

// The loss term and the state that a forward accumulates count once, even if the forward runs again.
TEST(ParamFamilies, RecomputeChangesNothingOfBlocksOfFourSegments) {
  const Result one = trained(toy_config({}), {}, at::kDouble);
  for (const LayoutOptions& how : {LayoutOptions{}, LayoutOptions{.dp = 2, .ep = 2, .stage = 2},
                                   LayoutOptions{.tp = 2, .pp = 2, .dp = 2, .ep = 2, .stage = 3},
                                   LayoutOptions{.tp = 2, .dp = 2, .ep = 2, .etp = 2, .stage = 1}}) {
    for (const char* method : {"uniform", "block"}) {
      for (const int64_t layers : {1, 2}) {
        SCOPED_TRACE(base::concat(words(how), " ", method, " ", layers));
        config::Config config = toy_config(how);
        config.memory.recompute_granularity = "full";
        config.memory.recompute_method = method;
        config.memory.recompute_num_layers = layers;
        expect_close(trained(config, how, at::kDouble), one, kRoundoff);
      }
    }
  }
}

TEST(ParamFamilies, ARouterInFp32IsAFamilyOfItsOwn) {
  const Result one = trained(toy_config({}), {}, at::kFloat);
  EXPECT_EQ(one.families, 3u);
  for (const LayoutOptions& how : in_every_stage({{.dp = 4, .ep = 2}, {.tp = 2, .pp = 2, .dp = 2, .ep = 4}})) {
    SCOPED_TRACE(words(how));
    expect_close(trained(toy_config(how), how, at::kFloat), one, kRouterRoundoff);
  }
}

TEST(ParamFamilies, PerTokenLossesAreSummedInEveryFamily) {
  const auto per_token = [](const LayoutOptions& how) {
    config::Config config = toy_config(how);
    config.train.calculate_per_token_loss = true;
    return config;
  };
  const Result one = trained(per_token({}), {}, at::kDouble);
  for (const LayoutOptions& how :
       {LayoutOptions{.tp = 2, .dp = 2, .ep = 2, .stage = 1}, LayoutOptions{.dp = 4, .ep = 2, .stage = 3}})
    expect_close(trained(per_token(how), how, at::kDouble), one, kRoundoff);
}

TEST(ParamFamilies, RunsOfDataParallelRanksCutBothGrids) {
  const Result one = trained(toy_config({}), {}, at::kDouble);
  for (LayoutOptions how :
       {LayoutOptions{.dp = 8, .ep = 2, .instances = 2}, LayoutOptions{.tp = 2, .dp = 4, .ep = 2, .instances = 2}}) {
    for (how.stage = 1; how.stage < 4; ++how.stage) {
      SCOPED_TRACE(words(how));
      expect_close(trained(toy_config(how), how, at::kDouble), one, kRoundoff);
    }
  }
}

TEST(ParamFamilies, MuonTakesEveryExpertAsAMatrixInEveryStage) {
  const auto muon = [](const LayoutOptions& how) {
    config::Config config = toy_config(how);
    config.optim.optimizer = "muon";
    config.optim.lr = 0.01;
    return config;
  };
  const Result one = trained(muon({}), {}, at::kDouble);
  for (const LayoutOptions& how : in_every_stage({{.dp = 4, .ep = 2}, {.tp = 2, .dp = 2, .ep = 2, .etp = 2}})) {
    SCOPED_TRACE(words(how));
    expect_close(trained(muon(how), how, at::kDouble), one, kMuonRoundoff);
  }
}

// Includes buffers: the checkpoint stores each as a whole tensor, independent of its sharding.
TEST(ParamFamilies, ACheckpointGoesOnInAnotherLayoutAndStage) {
  const Folder folder;
  const Result straight = trained(toy_config({}), {}, at::kDouble, {"", "", 0, 4});
  std::string load;
  const LayoutOptions hows[] = {{.tp = 2, .dp = 2, .ep = 4, .stage = 1},
                                {.pp = 2, .dp = 4, .ep = 2, .stage = 3},
                                {.tp = 2, .dp = 2, .ep = 2, .etp = 2, .stage = 2},
                                {}};
  Result last;
  for (int64_t step = 0; step < 4; ++step) {
    const std::string save = folder.at("step" + std::to_string(step));
    last = trained(toy_config(hows[step]), hows[step], at::kDouble, {load, save, step, step + 1});
    load = save;
    EXPECT_NEAR(last.losses.at(0), straight.losses.at(static_cast<size_t>(step)),
                kRoundoff * straight.losses.at(static_cast<size_t>(step)));
  }
  last.losses = straight.losses, last.norms = straight.norms, last.zeros = straight.zeros;
  last.balance = straight.balance;
  expect_close(last, straight, kRoundoff);
  EXPECT_GT(last.state.at("layers.0.router.expert_bias").abs().max().item<double>(), 0.0);
}

TEST(ParamFamilies, ASkippedStepLeavesStateWithoutGradientAsItWas) {
  const LayoutOptions how{.dp = 2, .ep = 2};
  config::Config config = toy_config(how);
  const Result before = trained(config, how, at::kDouble, {"", "", 0, 0});
  config.precision.grad_norm_skip_threshold = 1e-9;
  const Result after = trained(config, how, at::kDouble, {"", "", 0, 2});
  expect_equal_state(after.state, before.state);
  const Result once = trained(toy_config(how), how, at::kDouble, {"", "", 0, 1});
  EXPECT_GT(once.state.at("layers.1.experts.load").abs().max().item<double>(), 0.0);
}

}  // namespace
}  // namespace metroplex::test::families_ranks_test

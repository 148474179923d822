// A step makes no decision on the host: number of host reads, device work without them, and steps without host
// values.
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>

#include "support/call_log.h"
#include "support/operators.h"
#include "run/support.h"
#include "run/toy_experts.h"

namespace metroplex::test::step_on_device_ranks_test {
namespace {

// libtorch operators that copy a value to the host, on the calling thread.
class HostReads {
 public:
  std::vector<std::string> names() const {
    static const std::set<std::string> reads{
        "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero",
        "aten::masked_select",       "aten::allclose"};
    std::vector<std::string> names;
    std::copy_if(operators_.names().begin(), operators_.names().end(), std::back_inserter(names),
                 [](const std::string& name) { return reads.count(name) > 0; });
    return names;
  }

 private:
  Operators operators_;
};

TEST(HostReads, AreSeenWhereverTheyHide) {
  const HostReads reads;
  const at::Tensor x = at::ones({2});
  EXPECT_TRUE(reads.names().empty());
  EXPECT_EQ(x[0].item<float>(), 1.0F);
  EXPECT_EQ(reads.names().size(), 1u);
  EXPECT_TRUE(at::equal(x, x));
  EXPECT_EQ(reads.names().size(), 2u);
}

struct Form {
  TestLayout layout;
  const char* strategy = "no_shard";
  const char* optimizer = "adam";
  const char* dtype = "fp64";
  bool offload = false, held_back = false, per_token = false;

  std::string text() const {
    return base::concat("tp ", layout.tp, " pp ", layout.pp, " vpp ", layout.vpp, " dp ", layout.dp, " ", strategy,
                        " ", optimizer, " ", dtype, offload ? " offload" : "", held_back ? " held back" : "");
  }
  config::Config config() const {
    config::Config config = small_gpt();
    config.model.attention_dropout = config.model.hidden_dropout = 0.1;
    config.parallel.data_parallel_sharding_strategy = strategy;
    config.optim.optimizer = optimizer;
    config.optim.optimizer_cpu_offload = offload;
    config.precision.params_dtype = dtype;
    config.precision.initial_loss_scale = 1024;
    if (held_back) config.precision.grad_norm_skip_threshold = 1e-9;
    config.train.calculate_per_token_loss = per_token;
    config.train.log_num_zeros_in_grad = true;
    return cut(config, layout);
  }
};

std::vector<Form> forms() {
  const TestLayout one{}, all{2, 2, 1, 2, true}, virtual_stages{1, 2, 2, 2, false};
  return {{one},
          {one, "no_shard", "sgd", "fp32"},
          {one, "no_shard", "lion", "bf16"},
          {one, "no_shard", "muon", "bf16", false, false, true},
          {one, "no_shard", "adam", "fp16"},
          {one, "no_shard", "adam", "fp32", false, true},
          {one, "no_shard", "adam", "bf16", true},
          {all},
          {all, "optim", "adam", "fp16"},
          {all, "optim", "muon", "fp32"},
          {all, "optim_grads", "sgd", "bf16", false, false, true},
          {all, "optim_grads_params", "lion", "fp32", false, true},
          {virtual_stages, "optim_grads", "adam", "bf16", true},
          {virtual_stages, "optim_grads_params", "adam", "fp16"}};
}

// In the first step the ranks also agree on names.
void expect_one_read(step::Assembly& assembly, CallLog& log, bool updates) {
  step_at(assembly, 0);
  const auto batches = make_batches(assembly, 1);
  log.calls.clear();
  const HostReads reads;
  const auto outcome = step::train_step(assembly, {batches, 2, 8, false, {}});
  EXPECT_EQ(outcome.updated, updates) << outcome.skipped;
  EXPECT_TRUE(reads.names().empty()) << reads.names()[0];
  const auto told = std::count_if(log.calls.begin(), log.calls.end(),
                                  [](const RecordedCall& call) { return call.name == "read_on_host"; });
  EXPECT_EQ(told, 1);
  ASSERT_FALSE(log.calls.empty());
  EXPECT_EQ(log.calls.back().name, "read_on_host") << "after all work of the step";
}

TEST(StepOnDevice, TheHostReadsOnceAtTheEndOfAStep) {
  for (const Form& form : forms()) {
    const config::Config config = form.config();
    run_sharded(config, form.layout, [&](const comm::World& world) {
      SCOPED_TRACE(testing::Message() << form.text() << " rank " << world.rank());
      CallLog log;
      const comm::World watched = world.recorded(log);
      const auto assembly = step::assemble(config, watched, kVocab);
      expect_one_read(*assembly, log, !form.held_back);
    });
  }
}

TEST(StepOnDevice, TheHostReadsOnceWithLossTermsAndBuffersToo) {
  const TestLayout layout{2, 2, 1, 2, true};
  for (const bool held_back : {false, true}) {
    config::Config config = small_gpt();
    config.model.hidden_size = 8;
    config.parallel.expert_model_parallel_size = 2;
    config.parallel.data_parallel_sharding_strategy = "optim_grads";
    config::Parallel& parallel = config.parallel;
    parallel.tensor_model_parallel_size = parallel.pipeline_model_parallel_size = 2;
    parallel.sequence_parallel = true;
    parallel.ddp_bucket_size = 100;
    if (held_back) config.precision.grad_norm_skip_threshold = 1e-9;
    config = config::resolved(config, layout.ranks());
    run_sharded(config, layout, [&](const comm::World& world) {
      CallLog log;
      const comm::World watched = world.recorded(log);
      const auto assembly = step::assemble(config, watched, kVocab, false, toy_experts(watched, at::kFloat));
      assembly->model.extra_border_values = toy_border(config);
      expect_one_read(*assembly, log, !held_back);
    });
  }
}

nn::Microbatch moved(nn::Microbatch batch, at::Device device) {
  for (at::Tensor* x : {&batch.tokens, &batch.labels, &batch.loss_mask, &batch.position_ids, &batch.counters.samples})
    *x = x->to(device);
  return batch;
}

// Kernels of the second step, without its read.
std::vector<RecordedCall> enqueued(const config::Config& config, const comm::World& world, CallLog& log) {
  const auto assembly = step::assemble(config, world, kVocab);
  for (int64_t step = 0; step < 2; ++step) {
    std::vector<nn::Microbatch> batches;
    for (const nn::Microbatch& batch : make_batches(*assembly, step)) batches.push_back(moved(batch, world.device()));
    log.calls.clear();
    const step::EnqueuedStep enqueued = step::enqueue_step(*assembly, {batches, step + 1, 8 * step, false, {}});
    EXPECT_EQ(enqueued.vector.tensor().device().type(), world.device().type());
  }
  assembly->model.families.finish_gathers();
  return log.kernels();
}

TEST(StepOnDevice, WithoutValuesItIsTheSameStep) {
  for (const Form& form : forms()) {
    if (form.held_back) continue;  // reads a value
    SCOPED_TRACE(form.text());
    const config::Config config = form.config();
    const auto ranks = static_cast<int>(form.layout.ranks());
    std::vector<std::vector<RecordedCall>> real(static_cast<size_t>(ranks));
    run_sharded(config, form.layout, [&](const comm::World& world) {
      CallLog log;
      real[static_cast<size_t>(world.rank())] = enqueued(config, world.recorded(log), log);
    });
    for (int rank = 0; rank < ranks; ++rank) {
      CallLog log;
      const topology::RankGrid grid(ranks, config.parallel);
      const std::vector<RecordedCall> meta = enqueued(config, comm::make_meta_world(rank, grid, at::kCPU, &log), log);
      const std::vector<RecordedCall>& want = real[static_cast<size_t>(rank)];
      EXPECT_GT(want.size(), 30u);
      ASSERT_EQ(meta.size(), want.size()) << "rank " << rank;
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(meta[i] == want[i]) << "rank " << rank << " call " << i << ": " << meta[i].name << ", "
                                        << want[i].name;
    }
  }
}

TEST(StepOnDevice, WithoutValuesItTakesTheWayOfAGpuToo) {
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.text());
    const config::Config config = form.config();
    CallLog log;
    const topology::RankGrid grid(static_cast<int>(form.layout.ranks()), config.parallel);
    const comm::World world = comm::make_meta_world(0, grid, at::Device(at::kCUDA, 0), &log);
    const std::vector<RecordedCall> calls = enqueued(config, world, log);
    for (const char* name : {"loss_factors", "own_sums", "judge_step", "gradient_sums"}) {
      EXPECT_GT(
          std::count_if(calls.begin(), calls.end(), [&](const RecordedCall& call) { return call.name == name; }), 0)
          << name;
    }
  }
}

// Three steps before the first host read have the rates, corrections and noise of three steps.
TEST(StepOnDevice, CountsItsStepsAndFindsItsRatesWithoutTheHost) {
  for (const char* dtype : {"fp64", "bf16"}) {
    config::Config config = small_gpt();
    config.precision.params_dtype = dtype;
    config.optim.store_param_remainders = dtype == std::string("bf16");
    if (config.optim.store_param_remainders) config.optim.exp_avg_sq_dtype = "bf16";
    config = cut(config, {});
    std::vector<std::map<std::string, at::Tensor>> states;
    for (const bool told : {true, false}) {
      run_sharded(config, {}, [&](const comm::World& world) {
        const auto assembly = step::assemble(config, world, kVocab);
        for (int64_t step = 0; step < 3; ++step) {
          const auto batches = make_batches(*assembly, step);
          const step::StepInput input{batches, step + 1, told ? 8 * step : 0, false, {}};
          const step::EnqueuedStep enqueued = step::enqueue_step(*assembly, input);
          if (!told && step < 2) continue;
          const auto outcome = step::read_outcome(*assembly, input, enqueued);
          EXPECT_EQ(outcome.lr, assembly->optimization.schedule->lr(8 * step));
        }
        EXPECT_EQ(assembly->optimization.steps, 3);
        states.push_back(whole_state(*assembly));
      });
    }
    expect_equal_state(states[1], states[0]);
  }
}

// The loss is on the last stage of one data-parallel rank; the mask reaches all ranks.
TEST(StepOnDevice, ALossThatIsNotFiniteHoldsEveryRankBackBeforeTheHostHearsOfIt) {
  const TestLayout layout{2, 2, 1, 2, true};
  for (const char* strategy : {"no_shard", "optim_grads_params"}) {
    config::Config config = small_gpt();
    config.parallel.data_parallel_sharding_strategy = strategy;
    config.precision.check_for_nan_in_grad = false;  // only the loss
    config = cut(config, layout);
    run_sharded(config, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      step_at(*assembly, 0);
      const auto before = whole_state(*assembly);
      auto batches = make_batches(*assembly, 1);
      if (world.groups().dp.index() == 1) batches[2].loss_mask[0][0] = std::numeric_limits<double>::quiet_NaN();
      const step::EnqueuedStep step = step::enqueue_step(*assembly, {batches, 2, 8, false, {}});
      EXPECT_EQ(assembly->optimization.step_state.read().updates, 0);
      EXPECT_EQ(assembly->optimization.step_state.read().steps, 1);
      const step::StepVector told = step.vector.on_host(world.target());
      EXPECT_EQ(told.sums()->bad_losses, 2) << "of both tensor-parallel ranks";
      EXPECT_EQ(std::isfinite(told.losses()[2]), !assembly->process.last_stage() || world.groups().dp.index() != 1);
      assembly->model.families.finish_gathers();
      expect_equal_state(whole_state(*assembly), before);
    });
  }
}

// The table of rates is rebuilt if the sample counts differ from its rows.
TEST(StepOnDevice, FollowsAScheduleWhoseBatchSizeChanges) {
  const config::Config config = cut(small_gpt(), {});
  run_sharded(config, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    int64_t samples = 0;
    for (int64_t step = 0; step < 9; ++step) {
      auto batches = make_batches(*assembly, step);
      batches.resize(static_cast<size_t>(2 + 2 * (step / 3)));
      const auto outcome = step::train_step(*assembly, {batches, step + 1, samples, false, {}});
      EXPECT_EQ(outcome.lr, assembly->optimization.schedule->lr(samples)) << "step " << step;
      samples += static_cast<int64_t>(batches.size());
    }
  });
}

}  // namespace
}  // namespace metroplex::test::step_on_device_ranks_test

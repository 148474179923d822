// The simulator's collectives are those of the real step: calls and bytes of every group and operation.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "comm/launch.h"
#include "forecast/step_price.h"
#include "step/step.h"
#include "step_cases.h"

namespace metroplex::run::step_calls_ranks_test {
namespace {

using Counts = std::map<std::pair<std::string, std::string>, replay::CollectiveCount>;

int64_t count_bytes(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& x : tensors) bytes += static_cast<int64_t>(x.nbytes());
  return bytes;
}

// Counts the communication calls of a rank.
class CallCounter final : public device::Recorder {
 public:
  void run(device::Operation operation) override {
    operation.run();
    if (operation.group.empty() || operation.name == "wait" || !on) return;
    if (operation.name != "batch_p2p")
      return add(operation.group, operation.name,
                 std::max(count_bytes(operation.reads), count_bytes(operation.writes)));
    for (const at::Tensor& x : operation.reads) add(operation.group, "send", static_cast<int64_t>(x.nbytes()));
    for (const at::Tensor& x : operation.writes) add(operation.group, "recv", static_cast<int64_t>(x.nbytes()));
  }
  bool on = false;
  Counts counts;

 private:
  void add(const std::string& group, const std::string& name, int64_t bytes) {
    replay::CollectiveCount& count = counts[{group, name}];
    ++count.calls;
    count.bytes += bytes;
  }
};

// Counts of the second step, by rank.
std::vector<Counts> run_and_count(const config::Config& config, int ranks) {
  std::vector<Counts> all(static_cast<size_t>(ranks));
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), {}, [&](const comm::World& world) {
    CallCounter counter;
    const comm::World counted = world.recorded(counter);
    auto assembly = step::assemble(config, counted, config.model.vocab_size);
    const int64_t count = config.train.global_batch_size / (config.train.micro_batch_size * world.groups().dp.size());
    const std::vector<nn::Microbatch> batches(static_cast<size_t>(count), bench::make_batch(config, world));
    step::train_step(*assembly, {batches, 1, 0, false, {}});
    counter.on = true;
    step::train_step(*assembly, {batches, 2, 1, false, {}});
    all[static_cast<size_t>(world.rank())] = counter.counts;
  });
  return all;
}

class StepCalls : public testing::TestWithParam<bench::Case> {};

TEST_P(StepCalls, EqualTheRealStep) {
  const bench::Case& one = GetParam();
  const config::Config config = bench::make_config(one, {32, 48, 32, 64, 16});
  const forecast::TracedRun traced =
      forecast::trace_run({.config = config, .world_size = one.ranks, .vocab_size = config.model.vocab_size});
  const std::vector<Counts> real = run_and_count(config, one.ranks);
  const topology::RankGrid grid(one.ranks, config.parallel);
  for (int rank = 0; rank < one.ranks; ++rank) {
    const auto pp = static_cast<size_t>(grid.coordinates(rank).pp);
    Counts simulated = replay::count_collectives(traced.traces[pp], traced.table, static_cast<int>(pp));
    Counts counted = real[static_cast<size_t>(rank)];
    for (const auto& [key, count] : counted) {
      EXPECT_EQ(simulated[key].calls, count.calls) << "rank " << rank << " " << key.first << " " << key.second;
      // Routing decides the rows of this dispatcher. The simulator assumes equal loads: 16 tokens of 2 microbatches
      // choose 2 of 8 experts at random, so a rank's rows differ by at most 4 standard deviations, 40 %.
      if (key.second == "all_to_all" && key.first == "etp-ep")
        EXPECT_NEAR(static_cast<double>(simulated[key].bytes), static_cast<double>(count.bytes),
                    0.4 * static_cast<double>(count.bytes));
      else EXPECT_EQ(simulated[key].bytes, count.bytes) << "rank " << rank << " " << key.first << " " << key.second;
    }
    for (const auto& [key, count] : simulated)
      EXPECT_TRUE(counted.contains(key)) << "rank " << rank << " " << key.first << " " << key.second;
  }
}

std::string test_name(const testing::TestParamInfo<bench::Case>& info) {
  std::string name = info.param.name;
  std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Cases, StepCalls, testing::ValuesIn(bench::cases()), test_name);

// Rows of experts as bytes. Both buffers have a row for every row of both ranks, so that no step is repeated.
const bench::Case kRowFormats[] = {
    {"rows in 8 bits, allgather",
     2,
     {"model.num_moe_experts=8", "parallel.expert_model_parallel_size=2", "model.moe_token_dispatcher_type=allgather",
      "model.moe_dispatch_fwd_dtype=mxfp8", "model.moe_combine_bwd_dtype=mxfp8", "precision.params_dtype=bf16"}},
    {"rows in 8 bits, buffers",
     2,
     {"model.num_moe_experts=8", "parallel.expert_model_parallel_size=2",
      "model.moe_token_dispatcher_type=static_buffer", "model.moe_expert_rank_capacity_factor=2",
      "model.moe_paged_stash=true", "model.moe_paged_stash_buffer_size_factor_cuda=2",
      "model.moe_dispatch_fwd_dtype=mxfp8", "precision.params_dtype=bf16"}},
    {"buffers",
     2,
     {"model.num_moe_experts=8", "parallel.expert_model_parallel_size=2",
      "model.moe_token_dispatcher_type=static_buffer", "model.moe_expert_rank_capacity_factor=2"}}};
INSTANTIATE_TEST_SUITE_P(RowFormats, StepCalls, testing::ValuesIn(kRowFormats), test_name);

// Gathers of 8-bit codes, with the magnitudes of their scales.
const bench::Case kParamGather[] = {
    {"codes of tensorwise scales",
     8,
     {"parallel.pipeline_model_parallel_size=2", "parallel.tensor_model_parallel_size=2",
      "parallel.data_parallel_sharding_strategy=optim", "precision.params_dtype=bf16", "precision.fp8_format=e4m3",
      "precision.fp8_recipe=tensorwise", "precision.fp8_param_gather=true"}},
    {"codes of experts, zero 3",
     4,
     {"model.num_moe_experts=8", "parallel.expert_model_parallel_size=2", "model.moe_token_dispatcher_type=allgather",
      "parallel.data_parallel_sharding_strategy=optim_grads_params", "precision.params_dtype=bf16",
      "precision.fp8_format=e4m3", "precision.fp8_param_gather=true"}}};
INSTANTIATE_TEST_SUITE_P(ParamGather, StepCalls, testing::ValuesIn(kParamGather), test_name);

// Stages with other parameter families: without experts, without parameters, with an fp32 router.
const bench::Case kUneven[] = {
    {"experts in the last stage",
     4,
     {"model.num_moe_experts=8", "model.moe_layer_freq=[0,0,1,1]", "parallel.pipeline_model_parallel_size=2",
      "parallel.expert_model_parallel_size=2", "model.moe_token_dispatcher_type=allgather",
      "parallel.data_parallel_sharding_strategy=optim"}},
    {"a stage without parameters",
     3,
     {"parallel.pipeline_model_parallel_size=3", "parallel.pipeline_model_parallel_layout=E||ttttL"}},
    {"an fp32 router in the last stage",
     2,
     {"model.num_moe_experts=8", "model.moe_layer_freq=[0,0,1,1]", "model.moe_router_weight_in_fp32=true",
      "precision.params_dtype=bf16", "parallel.pipeline_model_parallel_size=2"}}};
INSTANTIATE_TEST_SUITE_P(UnevenStages, StepCalls, testing::ValuesIn(kUneven), test_name);

}  // namespace
}  // namespace metroplex::run::step_calls_ranks_test

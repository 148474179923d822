// parallel.reduce_scatter_with_fp32_accumulation on whole runs. Ranks that are threads or gloo processes sum half
// types in fp32 also in a reduce-scatter, in the same order, so the key changes no bit there.
#include "comm/backends/counting.h"
#include "run/support.h"

namespace metroplex::test::fp32_sums_ranks_test {
namespace {

struct Result {
  std::vector<double> losses, norms;
  std::vector<int64_t> zeros;                // of the gradients
  std::map<std::string, at::Tensor> params;  // rank 0
  std::map<std::pair<std::string, std::string>, comm::Traffic::Count> traffic;
};

Result run(const config::Config& base, const TestLayout& layout) {
  const config::Config config = cut(base, layout);
  Result result;
  const auto traffic = std::make_shared<comm::Traffic>();
  comm::ThreadsOptions options{std::chrono::seconds(60)};
  options.traffic = traffic;
  const auto ranks = static_cast<int>(layout.ranks());
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), options, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    Result mine;
    for (int64_t step = 0; step < 3; ++step) {
      const step::StepOutcome outcome = step_at(*assembly, step);
      mine.losses.push_back(outcome.loss);
      mine.norms.push_back(outcome.grad_norm);
      mine.zeros.push_back(outcome.num_zeros);
    }
    mine.params =
        verify::gather_whole(assembly->process, assembly->model, assembly->optimization, verify::GatherKind::data);
    if (world.rank() == 0) result = std::move(mine);
  });
  result.traffic = traffic->counts();
  return result;
}

// Bytes and calls of one operation over the data-parallel ranks, or those that share state.
comm::Traffic::Count total(const Result& result, const std::string& operation) {
  comm::Traffic::Count sum;
  for (const auto& [key, count] : result.traffic) {
    if (key.second != operation || (key.first != "dp-cp" && key.first != "intra-dp-cp")) continue;
    sum.calls += count.calls, sum.bytes += count.bytes;
  }
  return sum;
}

// The norm is computed from the sums of the last reduction where the key is on, else from the gradients.
void check(config::Config config, const TestLayout& layout) {
  config.train.log_num_zeros_in_grad = true;
  config.precision.main_grads_dtype = "params";
  config.optim.lr = 1e-2;
  const Result without = run(config, layout);
  config.parallel.reduce_scatter_with_fp32_accumulation = true;
  const Result with = run(config, layout);
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.norms, without.norms);
  EXPECT_EQ(with.zeros, without.zeros);
  for (const auto& [name, values] : without.params) EXPECT_TRUE(at::equal(with.params.at(name), values)) << name;
  const comm::Traffic::Count before = total(without, "reduce_scatter"), after = total(with, "all_to_all");
  EXPECT_GT(before.calls, 0);
  EXPECT_EQ(after.calls, before.calls);
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(total(with, "reduce_scatter").calls, 0);
}

TEST(Fp32SumsRanks, KeepBitsAndBytesOfRuns) {
  for (const char* dtype : {"bf16", "fp16"}) {
    for (const char* strategy : {"optim", "optim_grads", "optim_grads_params"}) {
      for (const bool overlap : {true, false}) {
        SCOPED_TRACE(base::concat(dtype, " ", strategy, overlap ? " overlapped" : ""));
        config::Config config = small_gpt();
        config.precision.params_dtype = dtype;
        config.precision.initial_loss_scale = 1024;
        config.train.global_batch_size = 12;
        config.parallel.data_parallel_sharding_strategy = strategy;
        config.parallel.overlap_grad_reduce = overlap;
        check(config, TestLayout{1, 1, 1, 3, false});
        check(config, TestLayout{1, 2, 1, 2, false});
      }
    }
  }
}

// Gradients that are summed again after the reduction: of tied embeddings on two stages, of norms under sequence
// parallelism, of replicas. Experts have other data-parallel ranks. The vocabulary of 50 is padded.
TEST(Fp32SumsRanks, NormsCoverGradientsThatChangeLater) {
  for (const char* strategy : {"optim", "optim_grads", "optim_grads_params"}) {
    SCOPED_TRACE(strategy);
    for (const bool experts : {false, true}) {
      config::Config config = small_gpt();
      if (experts) {
        config.model.num_moe_experts = 4;
        config.parallel.expert_model_parallel_size = 2;
        config.parallel.expert_tensor_parallel_size = 1;
      }
      config.precision.params_dtype = "bf16";
      config.train.global_batch_size = 8;
      config.parallel.data_parallel_sharding_strategy = strategy;
      check(config, TestLayout{2, 1, 1, 2, true});
      check(config, TestLayout{1, 2, 1, 4, false});
      config.parallel.num_distributed_optimizer_instances = 2;
      check(config, TestLayout{1, 1, 1, 4, false});
    }
  }
}

}  // namespace
}  // namespace metroplex::test::fp32_sums_ranks_test

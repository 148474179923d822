// A recorder of the world (World::recorded) receives every kernel and every communication call of whole training
// steps, with all tensors that they access.
#include "comm/backends/counting.h"
#include "nn/with_products.h"
#include "support/operation_recorder.h"
#include "run/support.h"

namespace metroplex::test::recorder_ranks_test {
namespace {

struct Recorded {
  std::set<std::string> kernels;
  std::map<std::string, int64_t> calls;
  step::StepOutcome outcome;
};

// Two steps, and the optimizer state read and written, on two tensor-parallel ranks.
Recorded record(config::Config config, bool sequence_parallel) {
  const TestLayout layout{.tp = 2, .sp = sequence_parallel};
  config.train.global_batch_size = 2;
  config = cut(config, layout);
  std::vector<Recorded> of_ranks(2);
  comm::run_threads(2, topology::RankGrid(2, config.parallel), {std::chrono::seconds(60)},
                    [&](const comm::World& world) {
                      OperationRecorder recorder;
                      Recorded& mine = of_ranks[static_cast<size_t>(world.rank())];
                      {
                        const comm::World watched = world.recorded(recorder);
                        const auto assembly = step::assemble(config, watched, kVocab);
                        for (int64_t step = 0; step < 2; ++step) mine.outcome = step_at(*assembly, step);
                        for (const optim::State& state : assembly->optimization.optimizer->state())
                          assembly->optimization.optimizer->restore(state, state.values().clone());
                        assembly->model.families.finish_gathers();
                      }
                      mine.kernels = recorder.kernels();
                      mine.calls = recorder.calls();
                      recorder.run_each_alone();
                    });
  Recorded all = of_ranks[0];
  EXPECT_EQ(all.kernels, of_ranks[1].kernels);
  for (const auto& [name, count] : of_ranks[1].calls) all.calls[name] += count;
  return all;
}

config::Config with(config::Config config, const char* optimizer, const char* dtype) {
  config.optim.optimizer = optimizer;
  config.precision.params_dtype = dtype;
  return config;
}

TEST(RecorderRanks, IsToldOfEveryKernelAndEachRunsOnNothingButItsReads) {
  config::Config bf16 = with(small_gpt(), "adam", "bf16"), eight = with(small_gpt(), "adam", "fp32");
  bf16.optim.store_param_remainders = true;
  eight.optim.exp_avg_dtype = eight.optim.exp_avg_sq_dtype = "8bit";
  config::Config llama = with(small_llama(), "lion", "fp64");
  llama.model.qk_layernorm = true;  // heads are split, normalized and rotated at once
  config::Config muon = with(small_llama(), "muon", "bf16");
  muon.model.qk_layernorm = true;  // heads are rotated after their norm
  muon.model.normalization = config::Normalization::LayerNorm;
  muon.model.family = "gpt";
  config::Config large = with(small_gpt(), "sgd", "fp32");  // matmuls that use oneDNN
  large.model.hidden_size = 128;
  large.model.num_layers = 1;
  large.train.seq_length = 64;
  large.model.max_position_embeddings = 64;

  std::set<std::string> kernels;
  const std::vector<std::pair<config::Config, bool>> runs{
      {bf16, true}, {eight, false}, {llama, false}, {muon, false}, {large, true}};
  for (const auto& [config, also_as_on_another_cpu] : runs) {
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(testing::Message() << config.model.family << " " << config.precision.params_dtype << " sp "
                                      << sequence_parallel);
      kernels.merge(record(config, sequence_parallel).kernels);
      if (!also_as_on_another_cpu) continue;
      const WithProducts other({.onednn_floats = true, .mkl_bf16_sums = false});
      kernels.merge(record(config, sequence_parallel).kernels);
    }
  }
  std::set<std::string> expected{"activation_backward",
                                 "activation_forward",
                                 "adam_step",
                                 "add_elements",
                                 "attention_backward",
                                 "attention_forward",
                                 "bias_dropout_add",
                                 "block8_decode",
                                 "block8_encode",
                                 "column_sums",
                                 "copy_if_updates",
                                 "cross_entropy_backward",
                                 "cross_entropy_statistics",
                                 "dropout_norm_backward",
                                 "dropout_norm_forward",
                                 "gather_rows",
                                 "gradient_numbers",
                                 "gradient_sums",
                                 "join_floats",
                                 "join_heads",
                                 "judge_step",
                                 "lion_step",
                                 "loss_factors",
                                 "norm_backward",
                                 "norm_forward",
                                 "own_sums",
                                 "read_on_host",
                                 "rope",
                                 "scatter_add_rows",
                                 "sgd_step",
                                 "split_floats",
                                 "split_heads",
                                 "sum_lines"};
  for (const char* name : {"bf16_weight_gradient", "onednn_product"}) kernels.erase(name);  // depend on the processor
  EXPECT_EQ(kernels, expected);
}

TEST(RecorderRanks, IsToldOfEveryCallOfAGroup) {
  for (const bool sequence_parallel : {false, true}) {
    const TestLayout layout{.tp = 2, .pp = 2, .dp = 2, .sp = sequence_parallel};
    config::Config config = small_gpt();
    config.parallel.data_parallel_sharding_strategy = "optim";
    config = cut(config, layout);
    const auto traffic = std::make_shared<comm::Traffic>();
    comm::ThreadsOptions options{std::chrono::seconds(60)};
    options.traffic = traffic;
    std::vector<std::map<std::string, int64_t>> of_ranks(8);
    comm::run_threads(8, topology::RankGrid(8, config.parallel), options, [&](const comm::World& world) {
      OperationRecorder recorder;
      const comm::World watched = world.recorded(recorder);
      const auto assembly = step::assemble(config, watched, kVocab);
      step_at(*assembly, 0);
      assembly->model.families.finish_gathers();
      of_ranks[static_cast<size_t>(world.rank())] = recorder.calls();
    });
    std::map<std::string, int64_t> recorded, counted;
    for (const auto& calls : of_ranks) {
      for (const auto& [name, count] : calls) recorded[name] += count;
    }
    for (const auto& [of, count] : traffic->counts()) counted[of.second] += count.calls;
    EXPECT_GT(recorded["batch_p2p"], 0);
    EXPECT_GE(counted["send"] + counted["recv"], recorded["batch_p2p"]);  // each a batch of one or more
    for (const char* p2p : {"send", "recv", "batch_p2p"}) recorded.erase(p2p), counted.erase(p2p);
    EXPECT_EQ(recorded, counted);
  }
}

TEST(RecorderRanks, ARecorderChangesNothing) {
  const config::Config config = cut(small_gpt(), {.tp = 2});
  std::vector<std::vector<double>> numbers;
  for (const bool watched : {false, true}) {
    run_sharded(config, {.tp = 2}, [&](const comm::World& world) {
      OperationRecorder recorder;
      const comm::World own = watched ? world.recorded(recorder) : world;
      const auto assembly = step::assemble(config, own, kVocab);
      std::vector<double> mine;
      for (int64_t step = 0; step < 3; ++step) {
        const auto outcome = step_at(*assembly, step);
        mine.insert(mine.end(), {outcome.loss, outcome.grad_norm});
      }
      if (world.rank() == 0) numbers.push_back(mine);
    });
  }
  EXPECT_EQ(numbers[0], numbers[1]);
}

}  // namespace
}  // namespace metroplex::test::recorder_ranks_test

// What the formula of plan/memory.h says a rank holds, against what it holds in a training step, on every rank of
// every layout.
#include "comm/collectives.h"
#include "plan/rank_model.h"
#include "train/memory_report.h"
#include "train/memory_yaml.h"
#include "train/support.h"

namespace metroplex::test {
namespace {

struct Case {
  std::string name;
  bool llama = false;
  TestLayout cut;
  std::string yaml;  // over the small model
};

config::Config config_of(const Case& c) {
  const std::string family =
      c.llama ? "model: {family: llama, num_layers: 4, hidden_size: 32, num_attention_heads: 4, num_query_groups: 2,"
                " ffn_hidden_size: 48, vocab_size: 50, make_vocab_size_divisible_by: 8"
              : "model: {family: gpt, num_layers: 4, hidden_size: 32, num_attention_heads: 4, vocab_size: 50,"
                " make_vocab_size_divisible_by: 8";
  config::Config config =
      config::parse(family + (c.yaml.rfind(",", 0) == 0 ? c.yaml : "}\n" + c.yaml) +
                    "\ntrain: {seq_length: 8, micro_batch_size: 2, global_batch_size: 16, train_iters: 20}\n"
                    "data: {mock_data: true}\n");
  if (c.name == "codegeex") config.model.family = c.name;
  return cut(config, c.cut);
}

std::vector<Case> cases() {
  return {
      {"gpt", false, {}, ""},
      {"gpt bf16", false, {}, kBf16},
      {"gpt fp64", false, {}, "precision: {params_dtype: fp64}\n"},
      {"gpt fp16", false, {}, "precision: {params_dtype: fp16, main_grads_dtype: params}\n"},
      {"gpt dropout", false, {}, ", attention_dropout: 0.1, hidden_dropout: 0.1}\n"},
      {"llama", true, {}, ""},
      {"llama qk norm", true, {}, ", qk_layernorm: true, add_qkv_bias: true}\n" + kBf16},
      {"codegeex", false, {}, ""},
      {"gpt tp 2", false, {2, 1, 1, 1, false}, ""},
      {"llama tp 2 sp bf16", true, {2, 1, 1, 1, true}, kBf16},
      {"gpt pp 2", false, {1, 2, 1, 1, false}, ""},
      {"gpt pp 4 bf16", false, {1, 4, 1, 1, false}, kBf16},
      {"llama pp 2 vpp 2", true, {1, 2, 2, 1, false}, kBf16},
      {"gpt pp 2 vpp 2 tp 2 sp", false, {2, 2, 2, 1, true}, ""},
      {"gpt zero 0 dp 4", false, {1, 1, 1, 4, false}, kBf16},
      {"gpt zero 1 dp 4", false, {1, 1, 1, 4, false}, kBf16 + zero("optim")},
      {"gpt zero 2 dp 4", false, {1, 1, 1, 4, false}, kBf16 + zero("optim_grads")},
      {"gpt zero 3 dp 4", false, {1, 1, 1, 4, false}, kBf16 + zero("optim_grads_params")},
      {"llama zero 3 dp 2 tp 2", true, {2, 1, 1, 2, true}, zero("optim_grads_params")},
      {"llama zero 3 dp 2 pp 2 recompute",
       true,
       {1, 2, 1, 2, false},
       zero("optim_grads_params") + full_recompute("recompute_method: uniform, recompute_num_layers: 2")},
      {"gpt zero 2 dp 2 pp 2 vpp 2", false, {1, 2, 2, 2, false}, kBf16 + zero("optim_grads")},
      {"gpt zero 1 instances",
       false,
       {1, 1, 1, 4, false},
       "parallel: {data_parallel_sharding_strategy: optim, num_distributed_optimizer_instances: 2}\n"},
      {"gpt full uniform 1",
       false,
       {1, 2, 1, 1, false},
       full_recompute("recompute_method: uniform, recompute_num_layers: 1")},
      {"llama full block 1",
       true,
       {1, 2, 1, 1, false},
       kBf16 + full_recompute("recompute_method: block, recompute_num_layers: 1")},
      {"gpt zero-r",
       false,
       {2, 1, 1, 1, false},
       full_recompute("recompute_method: uniform, recompute_num_layers: 2, distribute_saved_activations: true")},
      {"gpt core_attn", false, {}, selective_recompute("core_attn")},
      {"llama mlp layernorm", true, {}, kBf16 + selective_recompute("mlp, layernorm")},
      {"gpt activation", false, {2, 1, 1, 1, true}, selective_recompute("activation, layernorm")},
      {"gpt file", false, {}, "memory: {offload_activations: file}\n"},
      {"llama file and full",
       true,
       {2, 1, 1, 1, false},
       "memory: {offload_activations: file, recompute_granularity: full, recompute_method: block,"
       " recompute_num_layers: 2}\n"},
      {"gpt remainders 8bit",
       false,
       {1, 1, 1, 2, false},
       kBf16 + zero("optim") +
           "optim: {store_param_remainders: true, exp_avg_dtype: 8bit, exp_avg_sq_dtype: 8bit}\n"},
      {"gpt bf16 main and moments", false, {}, kBf16 + "optim: {main_params_dtype: bf16, exp_avg_dtype: bf16}\n"},
      {"gpt optimizer on the host",
       false,
       {1, 1, 1, 2, false},
       kBf16 + zero("optim_grads") + "optim: {optimizer_cpu_offload: true, exp_avg_dtype: 8bit}\n"},
      {"gpt sgd", false, {}, "optim: {optimizer: sgd}\n"},
      {"gpt lion", false, {}, kBf16 + "optim: {optimizer: lion}\n"},
      {"llama muon", true, {2, 1, 1, 1, false}, kBf16 + "optim: {optimizer: muon}\n"},
  };
}

// Steps after the first one on this rank, more of them where other ranks' threads pass tensors.
void measure(const config::Config& config, const comm::World& world,
             const std::function<void(train::Assembly&, const train::MeasuredMemory&)>& check) {
  cuda::MemoryMeter meter;
  const auto a = train::assemble(config, world, kVocab);
  train::MemoryReport report(*a, meter);
  step_at(*a, 0);
  for (int64_t step = 1; step <= (config.parallel.pp() > 1 ? 12 : 1); ++step) {
    const auto batches = batches_of(*a, step);
    report.begin_step();
    train::train_step(*a, {batches, step + 1, step * config.train.global_batch_size, false, {}});
  }
  check(*a, report.end_step());
}

int64_t microbatches(const train::Assembly& a) {
  return a.config.train.global_batch_size / (a.config.train.micro_batch_size * a.groups().dp.size());
}

TEST(MemoryRanks, TheFormulaIsWhatARankHolds) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const config::Config config = config_of(c);
    run_cut(config, c.cut, [&](const comm::World& world) {
      measure(config, world, [&](train::Assembly& a, const train::MeasuredMemory& measured) {
        SCOPED_TRACE(c.name + " rank " + std::to_string(world.rank()));
        const plan::MemoryPrediction want = train::predicted_memory(a, microbatches(a));
        EXPECT_EQ(measured.use.parameters, want.use.parameters);
        EXPECT_EQ(measured.use.gradients, want.use.gradients);
        EXPECT_EQ(measured.use.main_parameters, want.use.main_parameters);
        EXPECT_EQ(measured.use.moments, want.use.moments);
        EXPECT_EQ(measured.use.host, want.use.host);
        EXPECT_EQ(measured.use.activations, want.use.activations);
        EXPECT_EQ(measured.borders, want.borders);
        EXPECT_EQ(measured.gathered, want.gathered);
        EXPECT_EQ(measured.use.communication, want.use.communication);
      });
    });
  }
}

TEST(MemoryRanks, PartsAreTheParametersOfTheModelNameByName) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const config::Config config = config_of(c);
    run_cut(config, c.cut, [&](const comm::World& world) {
      const auto a = train::assemble(config, world, kVocab);
      const plan::RankModel model = plan::rank_model(config, world.groups().pp.index(), kVocab);
      ASSERT_EQ(model.params.size(), a->params.size());
      for (size_t i = 0; i < model.params.size(); ++i) {
        const nn::Param& param = *a->params[i];
        EXPECT_EQ(model.params[i].name, param.name);
        EXPECT_EQ(model.params[i].shape, param.local_shape) << param.name;
        EXPECT_EQ(model.params[i].shared, !param.placement.shared.empty()) << param.name;
        EXPECT_EQ(model.params[i].role, param.placement.role) << param.name;
        EXPECT_EQ(model.params[i].uses_per_microbatch, param.uses_per_microbatch) << param.name;
      }
    });
  }
}

}  // namespace
}  // namespace metroplex::test

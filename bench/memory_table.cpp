// memory_table: measured memory of rank threads in a training step and the prediction of forecast/predict.h, over
// many layouts of two small models. Prints a Markdown table: predicted / measured in KiB on the rank with the largest
// prediction, differences in percent of the prediction.
#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <cmath>
#include <cstdio>

#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "forecast/memory_report.h"
#include "step/step.h"

// A macro, so that it concatenates with the literal after it.
#define MPX_BF16 "precision: {params_dtype: bf16}\n"

namespace {

using namespace metroplex;

struct Row {
  const char* name;
  bool llama;
  int tp, pp, vpp, dp;
  const char* yaml;  // top-level sections besides model, train and data; parallel is `parallel`
  const char* parallel = "";
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {"GPT fp32", false, 1, 1, 1, 1, ""},
      {"GPT bf16", false, 1, 1, 1, 1, MPX_BF16},
      {"Llama bf16", true, 1, 1, 1, 1, MPX_BF16},
      {"GPT bf16, tp 2", false, 2, 1, 1, 1, MPX_BF16},
      {"Llama bf16, tp 2, sp", true, 2, 1, 1, 1, MPX_BF16, "sequence_parallel: true"},
      {"GPT bf16, pp 4", false, 1, 4, 1, 1, MPX_BF16},
      {"Llama bf16, pp 2, vpp 2", true, 1, 2, 2, 1, MPX_BF16},
      {"GPT bf16, dp 4", false, 1, 1, 1, 4, MPX_BF16},
      {"GPT bf16, dp 4, ZeRO-1", false, 1, 1, 1, 4, MPX_BF16, "data_parallel_sharding_strategy: optim"},
      {"GPT bf16, dp 4, ZeRO-2", false, 1, 1, 1, 4, MPX_BF16,
       "data_parallel_sharding_strategy: optim_grads, ddp_bucket_size: 100000"},
      {"GPT bf16, dp 4, ZeRO-3", false, 1, 1, 1, 4, MPX_BF16, "data_parallel_sharding_strategy: optim_grads_params"},
      {"Llama fp32, dp 2, tp 2, pp 2, ZeRO-3", true, 2, 2, 1, 2, "",
       "data_parallel_sharding_strategy: optim_grads_params"},
      {"GPT bf16, recompute full, uniform 1", false, 1, 1, 1, 1,
       MPX_BF16 "memory: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}\n"},
      {"Llama bf16, recompute full, block 2", true, 1, 1, 1, 1,
       MPX_BF16 "memory: {recompute_granularity: full, recompute_method: block, recompute_num_layers: 2}\n"},
      {"GPT bf16, tp 2, recompute full, ZeRO-R", false, 2, 1, 1, 1,
       MPX_BF16 "memory: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1,"
                " distribute_saved_activations: true}\n"},
      {"GPT bf16, recompute core_attn", false, 1, 1, 1, 1,
       MPX_BF16 "memory: {recompute_granularity: selective, recompute_modules: [core_attn]}\n"},
      {"Llama bf16, recompute mlp, layernorm", true, 1, 1, 1, 1,
       MPX_BF16 "memory: {recompute_granularity: selective, recompute_modules: [mlp, layernorm]}\n"},
      {"GPT bf16, activations in a file", false, 1, 1, 1, 1, MPX_BF16 "memory: {offload_activations: file}\n"},
      {"GPT bf16, remainders", false, 1, 1, 1, 1, MPX_BF16 "optim: {store_param_remainders: true}\n"},
      {"GPT bf16, dp 2, ZeRO-1, 8-bit moments", false, 1, 1, 1, 2,
       MPX_BF16 "optim: {exp_avg_dtype: 8bit, exp_avg_sq_dtype: 8bit}\n", "data_parallel_sharding_strategy: optim"},
  };
  return all;
}

config::Config make_config(const Row& row) {
  char layout[256];
  std::snprintf(layout, sizeof layout,
                "parallel: {tensor_model_parallel_size: %d, pipeline_model_parallel_size: %d,"
                " virtual_pipeline_model_parallel_size: %d%s%s}\n",
                row.tp, row.pp, row.vpp, row.vpp > 1 ? ", overlap_p2p_comm: true" : "",
                *row.parallel != 0 ? (std::string(", ") + row.parallel).c_str() : "");
  const std::string model =
      row.llama ? "model: {family: llama, num_query_groups: 2, ffn_hidden_size: 384, " : "model: {family: gpt, ";
  config::Config config =
      config::parse(model +
                    "num_layers: 4, hidden_size: 128, num_attention_heads: 4, vocab_size: 1000}\n"
                    "train: {seq_length: 64, micro_batch_size: 2, global_batch_size: 32, train_iters: 20}\n"
                    "data: {mock_data: true}\n" +
                    layout + row.yaml);
  const int ranks = row.tp * row.pp * row.dp;
  config::check(config, ranks);
  return config::resolved(config, ranks);
}

std::vector<nn::Microbatch> make_batches(const step::Assembly& assembly) {
  const config::Train& train = assembly.process.config.train;
  std::vector<nn::Microbatch> batches;
  for (int64_t m = 0; m < train.global_batch_size / (train.micro_batch_size * assembly.process.groups().dp.size());
       ++m) {
    const at::Tensor text = at::arange(train.micro_batch_size * (train.seq_length + 1), at::kLong)
                                .add_(17 * m)
                                .remainder_(1000)
                                .view({train.micro_batch_size, train.seq_length + 1});
    nn::Microbatch batch;
    batch.tokens = text.narrow(1, 0, train.seq_length).contiguous();
    batch.labels = text.narrow(1, 1, train.seq_length).contiguous();
    batch.loss_mask = at::ones(batch.tokens.sizes(), at::kFloat);
    batch.mask_sum = batch.loss_mask.sum(at::kDouble).item<double>();
    batch.position_ids = at::arange(train.seq_length, at::kLong).expand(batch.tokens.sizes()).contiguous();
    batch.counters.samples = nn::make_sample_counters(0, at::arange(train.micro_batch_size, at::kLong));
    batches.push_back(std::move(batch));
  }
  return batches;
}

struct Outcome {
  forecast::MeasuredMemory measured;
  replay::MemoryPrediction predicted;
};

Outcome run(const config::Config& config, const comm::World& world) {
  device::MemoryMeter meter;
  const auto assembly = step::assemble(config, world, 1000);
  forecast::MemoryReport report(*assembly, meter);
  const auto batches = make_batches(*assembly);
  step::train_step(*assembly, {batches, 1, 0, false, {}});
  for (int64_t step = 1; step <= (config.parallel.pp() > 1 ? 12 : 1); ++step) {
    report.begin_step();
    step::train_step(*assembly, {batches, step + 1, step * config.train.global_batch_size, false, {}});
  }
  return {report.end_step(), forecast::predicted_memory(assembly->process, static_cast<int64_t>(batches.size()))};
}

void cell(int64_t predicted, int64_t measured) {
  if (predicted == 0 && measured == 0) {
    std::printf(" - |");
    return;
  }
  const double off = 100.0 * (static_cast<double>(measured) / std::max(1.0, static_cast<double>(predicted)) - 1);
  std::printf(" %.1f / %.1f (%+.1f %%) |", static_cast<double>(predicted) / 1024,
              static_cast<double>(measured) / 1024, std::abs(off) < 0.05 ? 0.0 : off);
}

void print(const Row& row) {
  const config::Config config = make_config(row);
  const int ranks = row.tp * row.pp * row.dp;
  std::vector<Outcome> all(static_cast<size_t>(ranks));
  // Synchronous sends are not copied, so the meter of a rank counts only its own memory.
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), {std::chrono::seconds(60), true},
                    [&](const comm::World& world) { all[static_cast<size_t>(world.rank())] = run(config, world); });
  const Outcome* most = &all[0];
  for (const Outcome& one : all) {
    if (one.predicted.peak > most->predicted.peak) most = &one;
  }
  const replay::MemoryUse &use = most->predicted.use, &m = most->measured.use;
  std::printf("| %s |", row.name);
  cell(use.parameters, m.parameters);
  cell(use.gradients, m.gradients);
  cell(use.optimizer(), m.optimizer());
  cell(use.activations, m.activations);
  cell(use.communication, m.communication);
  std::printf(" %.1f / %.1f | %.1f / %.1f |\n", static_cast<double>(use.workspace) / 1024,
              static_cast<double>(m.workspace) / 1024, static_cast<double>(most->predicted.peak) / 1024,
              static_cast<double>(most->measured.peak) / 1024);
}

}  // namespace

int main() {
  at::globalContext().setUserEnabledMkldnn(false);  // oneDNN's packing depends on the machine's instruction set
  std::printf(
      "| configuration | parameters | gradients | optimizer | activations | communication | workspace | peak |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Row& row : rows()) print(row);
  return 0;
}

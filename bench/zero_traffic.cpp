// zero_traffic: calls and bytes of the data-parallel collectives in one training step at every ZeRO stage. One rank
// counts them without peers (comm/backends/counting moves no data, so the cost is independent of the number of
// ranks). Prints them next to the formulas of docs/optimizer.md as a Markdown table. The exit code is 1 if they
// differ.
#include <ATen/ATen.h>

#include <cstdio>

#include "comm/backends/counting.h"
#include "comm/world.h"
#include "config/load.h"
#include "config/validate.h"
#include "step/assemble.h"
#include "step/step.h"

namespace {

using namespace metroplex;

constexpr const char* kStrategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
constexpr int64_t kVocab = 32000, kSequence = 32;
constexpr int64_t kSums = 3 * 8;  // norm, zeros and overflow of sharded gradients: three doubles

config::Config make_config(int stage, int64_t dp, int64_t microbatches) {
  config::Config config = config::parse(
      "model: {family: llama, num_layers: 12, hidden_size: 768, num_attention_heads: 12, ffn_hidden_size: 2048,"
      " vocab_size: 32000, untie_embeddings_and_output_weights: true}\n"
      "train: {seq_length: 32, micro_batch_size: 1, train_iters: 10, check_for_nan_in_loss: false}\n"
      "precision: {params_dtype: bf16, check_for_nan_in_grad: false}\n"
      "data: {mock_data: true}\n");
  config.parallel.data_parallel_sharding_strategy = kStrategies[stage];
  config.train.global_batch_size = dp * microbatches;
  config::check(config, dp);
  return config::resolved(config, dp);
}

nn::Microbatch make_batch(int64_t number) {
  const at::Tensor text = at::arange(kSequence + 1, at::kLong).add_(17 * number).remainder_(kVocab).view({1, -1});
  nn::Microbatch batch;
  batch.tokens = text.narrow(1, 0, kSequence).contiguous();
  batch.labels = text.narrow(1, 1, kSequence).contiguous();
  batch.loss_mask = at::ones(batch.tokens.sizes(), at::kFloat);
  batch.mask_sum = batch.loss_mask.sum(at::kDouble).item<double>();
  batch.position_ids = at::arange(kSequence).view({1, -1});
  batch.counters.samples = nn::make_sample_counters(0, at::full({1}, number, at::kLong));
  return batch;
}

using Count = comm::Traffic::Count;
struct MeasuredTraffic {
  Count all_reduce, reduce_scatter, all_gather;
};

// Counts the second step; the first may still gather parameters after assembly.
MeasuredTraffic count_step(step::Assembly& assembly, comm::Traffic& traffic, int64_t microbatches) {
  std::vector<nn::Microbatch> batches;
  for (int64_t m = 0; m < microbatches; ++m) batches.push_back(make_batch(m));
  for (int64_t step = 0; step < 2; ++step) {
    traffic.clear();
    step::train_step(assembly,
                     {batches, step + 1, step * assembly.process.config.train.global_batch_size, false, {}});
    assembly.model.families.finish_gathers();
  }
  return {traffic.of("dp-cp", "all_reduce"), traffic.of("dp-cp", "reduce_scatter"),
          traffic.of("dp-cp", "all_gather")};
}

MeasuredTraffic formula(const step::Assembly& assembly, int stage, int64_t m) {
  const distributed::FlatLayout& layout = assembly.model.families.all().front().gradients->layout();
  const auto b = static_cast<int64_t>(layout.buckets().size());
  const int64_t gradients = layout.numel() * 4, params = layout.numel() * 2;
  if (stage == 0) return {{b, gradients}, {}, {}};
  const int64_t times = stage >= 2 ? m : 1, gathers = stage == 3 ? 2 * m : 1;
  return {{1, kSums}, {times * b, times * gradients}, {gathers * b, gathers * params}};
}

bool cell(const Count& counted, const Count& expected) {
  const bool equal = counted.calls == expected.calls && counted.bytes == expected.bytes;
  std::printf(" %ld, %.3f MB%s |", static_cast<long>(counted.calls), static_cast<double>(counted.bytes) / 1e6,
              equal ? "" : " (differs)");
  return equal;
}

bool print(int stage, int64_t dp, int64_t m) {
  const config::Config config = make_config(stage, dp, m);
  const auto traffic = std::make_shared<comm::Traffic>();
  const comm::World world = comm::make_world(0, topology::RankGrid(static_cast<int>(dp), config.parallel),
                                             comm::count_traffic({}, traffic));
  const auto assembly = step::assemble(config, world, kVocab);
  const MeasuredTraffic counted = count_step(*assembly, *traffic, m), expected = formula(*assembly, stage, m);
  std::printf("| ZeRO-%d | %ld | %ld |", stage, static_cast<long>(dp), static_cast<long>(m));
  const bool reduced = cell(counted.all_reduce, expected.all_reduce);
  const bool scattered = cell(counted.reduce_scatter, expected.reduce_scatter);
  const bool gathered = cell(counted.all_gather, expected.all_gather);
  std::printf(" %s |\n", reduced && scattered && gathered ? "equal" : "DIFFERENT");
  return reduced && scattered && gathered;
}

}  // namespace

int main() {
  std::printf("| stage | dp | microbatches | all-reduce | reduce-scatter | all-gather | formula |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
  bool equal = true;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int64_t dp : {8, 1024}) {
      for (const int64_t m : {1, 3}) equal = print(stage, dp, m) && equal;
    }
  }
  return equal ? 0 : 1;
}

// Additional time of a training step for every form of recompute and offload, relative to storing all activations.
// The forms alternate step by step in one process. Full recompute repeats the forward of the blocks, a third of their
// time.
//   recompute_time [steps] [threads]
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "step/assemble.h"
#include "step/step.h"
#include "timing.h"

namespace {

using namespace metroplex;
using bench::Clock;

constexpr int64_t kBatch = 2, kSequence = 256, kVocab = 1024;

struct Form {
  std::string name, options;
};
const Form kForms[] = {
    {"nothing", "{}"},
    {"full, every block", "{recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}"},
    {"full, two blocks at once", "{recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 2}"},
    {"core_attn", "{recompute_granularity: selective, recompute_modules: [core_attn]}"},
    {"mlp", "{recompute_granularity: selective, recompute_modules: [mlp]}"},
    {"layernorm, activation", "{recompute_granularity: selective, recompute_modules: [layernorm, activation]}"},
    {"offload to a file", "{offload_activations: file}"},
};

struct Run {
  std::unique_ptr<step::Assembly> assembly;
  std::vector<double> seconds;
};

config::Config make_config(const Form& form) {
  config::Config config = config::parse(
      "model: {num_layers: 6, hidden_size: 512, num_attention_heads: 8, vocab_size: 1024}\n"
      "train: {seq_length: 256, micro_batch_size: 2, global_batch_size: 2, train_iters: 1000}\n"
      "data: {mock_data: true}\nmemory: " +
      form.options + "\n");
  config::check(config, 1);
  return config::resolved(config, 1);
}

void measure(const comm::World& world, int64_t steps) {
  nn::Microbatch batch;
  batch.tokens = at::randint(0, kVocab, {kBatch, kSequence}, at::kLong);
  batch.labels = at::randint(0, kVocab, {kBatch, kSequence}, at::kLong);
  batch.position_ids = at::arange(kSequence, at::kLong).expand({kBatch, kSequence}).contiguous();
  batch.loss_mask = at::ones({kBatch, kSequence});
  batch.mask_sum = batch.loss_mask.sum(at::kDouble).item<double>();
  batch.counters.samples = nn::make_sample_counters(0, at::arange(kBatch, at::kLong));
  const std::vector<nn::Microbatch> batches{batch};
  std::vector<Run> runs;
  for (const Form& form : kForms) runs.push_back({step::assemble(make_config(form), world, kVocab), {}});
  for (int64_t step = 0; step < steps + 2; ++step) {
    for (Run& run : runs) {
      const auto start = Clock::now();
      step::train_step(*run.assembly, {batches, step + 1, step * kBatch, false, {}});
      if (step >= 2) run.seconds.push_back(bench::seconds_since(start));
    }
  }
  std::printf("| recomputed | ms a step | against nothing |\n| --- | --- | --- |\n");
  for (size_t i = 0; i < runs.size(); ++i) {
    std::printf("| %s | %.1f | %.3f |\n", kForms[i].name.c_str(), 1e3 * bench::median(runs[i].seconds),
                bench::median(runs[i].seconds) / bench::median(runs[0].seconds));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 15;
  comm::ThreadsOptions options;
  options.threads_per_rank = argc > 2 ? std::atoi(argv[2]) : static_cast<int>(std::thread::hardware_concurrency());
  const config::Config config = make_config(kForms[0]);
  comm::run_threads(1, topology::RankGrid(1, config.parallel), options,
                    [&](const comm::World& world) { measure(world, steps); });
  return 0;
}

// context_memory [tokens] [exchange] [ranks...]: measured and predicted memory of a context-parallel rank in a
// training step. Uses one sequence on 1, 2, 4 and 8 ranks as threads. Prints a Markdown table in MiB.
#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "timing.h"
#include "forecast/memory_report.h"
#include "step/step.h"
#include "verify/verify.h"

namespace {

using namespace metroplex;

constexpr int64_t kVocab = 256;

config::Config make_config(int64_t tokens, int cp, const std::string& exchange) {
  config::Config config = config::parse(
      "model: {family: llama, num_layers: 2, hidden_size: 64, num_attention_heads: 8, num_query_groups: 8, "
      "ffn_hidden_size: 128, vocab_size: 256}\n"
      "train: {micro_batch_size: 1, global_batch_size: 1, train_iters: 2}\n"
      "precision: {params_dtype: bf16}\n"
      "data: {mock_data: true}\n");
  config.train.seq_length = tokens;
  config.parallel.context_parallel_size = cp;
  config.parallel.cp_comm_type = exchange;
  if (exchange == "a2a+p2p") config.parallel.hierarchical_context_parallel_sizes = "2," + std::to_string(cp / 2);
  config::check(config, cp);
  return config::resolved(config, cp);
}

struct Outcome {
  forecast::MeasuredMemory measured;
  replay::MemoryPrediction predicted;
};

Outcome run(const config::Config& config, const comm::World& world) {
  device::MemoryMeter meter;
  const auto assembly = step::assemble(config, world, kVocab);
  forecast::MemoryReport report(*assembly, meter);
  for (int64_t step = 0; step < 2; ++step) {
    const auto batches = verify::synthetic_batches(config, world, kVocab, step, at::kFloat);
    report.begin_step();
    step::train_step(*assembly, {batches, step + 1, step, false, {}});
  }
  return {report.end_step(), forecast::predicted_memory(assembly->process, 1)};
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void print(int64_t tokens, int cp, const std::string& exchange) {
  const config::Config config = make_config(tokens, cp, exchange);
  std::vector<Outcome> all(static_cast<size_t>(cp));
  const auto start = bench::Clock::now();
  // Synchronous sends are not copied, so the meter of a rank counts only its own memory.
  comm::run_threads(cp, topology::RankGrid(cp, config.parallel), {std::chrono::minutes(10), true},
                    [&](const comm::World& world) { all[static_cast<size_t>(world.rank())] = run(config, world); });
  const auto most = [&](const auto& of) {
    int64_t value = 0;
    for (const Outcome& one : all) value = std::max(value, of(one));
    return value;
  };
  std::printf("| %d | %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.0f |\n", cp, cp == 1 ? "" : exchange.c_str(),
              mib(most([](const Outcome& outcome) { return outcome.measured.use.activations; })),
              mib(most([](const Outcome& outcome) { return outcome.predicted.use.activations; })),
              mib(most([](const Outcome& outcome) { return outcome.measured.use.workspace; })),
              mib(most([](const Outcome& outcome) { return outcome.predicted.use.workspace; })),
              mib(most([](const Outcome& outcome) { return outcome.measured.peak; })),
              mib(most([](const Outcome& outcome) { return outcome.predicted.peak; })), bench::seconds_since(start));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 32768;
  const std::string exchange = argc > 2 ? argv[2] : "p2p";
  std::vector<int> ranks;
  for (int i = 3; i < argc; ++i) ranks.push_back(std::atoi(argv[i]));
  if (ranks.empty()) ranks = {1, 2, 4, 8};
  at::globalContext().setUserEnabledMkldnn(false);  // oneDNN's packing depends on the machine's instruction set
  std::printf("One sequence of %lld tokens, bf16, MiB on the rank with most, measured and predicted:\n\n",
              static_cast<long long>(tokens));
  std::printf("| cp | exchange | activations | predicted | workspace | predicted | peak | predicted | seconds |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  for (const int cp : ranks) print(tokens, cp, exchange);
  return 0;
}

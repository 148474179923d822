// hybrid_steps [tokens] [steps]: training steps of packed documents by the virtual clock (docs/topology.md), on links
// of two speeds. Compares fixed data-parallel ranks, whose cp ranks divide their samples evenly, with hybrid context
// parallelism. Both use the same samples, which differ per step.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "clocked_steps.h"
#include "step/batch.h"
#include "step/hybrid_batch.h"

namespace {

using namespace metroplex;

constexpr int64_t kVocab = 256;

struct Run {
  int dp = 2, cp = 2;
  int64_t tokens = 1024, samples = 8;
  double sigma = 1;
  bool hybrid = false;
};

config::Config make_config(const Run& run) {
  config::Config config = config::parse(
      "model: {family: llama, num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 256}\n"
      "train: {micro_batch_size: 1, train_iters: 10, calculate_per_token_loss: true}\n"
      "data: {mock_data: true, reset_attention_mask: true}\n"
      "parallel: {context_parallel_cut: balanced}\n");
  config.train.seq_length = run.tokens;
  config.train.global_batch_size = run.samples;
  config.parallel.context_parallel_size = run.cp;
  config.parallel.hybrid_context_parallel = run.hybrid;
  config::check(config, run.dp * run.cp);
  return config::resolved(config, run.dp * run.cp);
}

// Documents with log-normal lengths, packed into one sample.
nn::Microbatch make_sample(const Run& run, int64_t number, int64_t step) {
  std::mt19937_64 random(static_cast<uint64_t>(1000 * step + number));
  std::lognormal_distribution<double> lengths(std::log(static_cast<double>(run.tokens) / 16), run.sigma);
  data::Sample sample;
  for (int32_t document = 0; static_cast<int64_t>(sample.tokens.size()) < run.tokens; ++document) {
    for (int64_t left = std::max<int64_t>(1, static_cast<int64_t>(lengths(random))); left > 0; --left) {
      if (static_cast<int64_t>(sample.tokens.size()) == run.tokens) break;
      sample.tokens.push_back(static_cast<int64_t>(random() % kVocab));
      sample.document_ids.push_back(document);
    }
  }
  sample.labels = sample.position_ids = sample.tokens;
  sample.loss_mask.assign(sample.tokens.size(), 1.0F);
  return step::stack_samples({{sample}, {number, 1, step}, kVocab, {}}, at::kFloat);
}

std::vector<nn::Microbatch> make_batches(const Run& run, const config::Config& config, const comm::World& world,
                                         int64_t step) {
  std::vector<nn::Microbatch> all;
  for (int64_t s = 0; s < run.samples; ++s) all.push_back(make_sample(run, s, step));
  if (run.hybrid) return step::hybrid_batches(all, step::hybrid_sharding(config, kVocab, world.groups().dp_cp));
  std::vector<nn::Microbatch> own;
  const step::SequenceSharding parts = step::sequence_sharding(config.parallel, world.groups().cp);
  for (int64_t s = world.groups().dp.index(); s < run.samples; s += run.dp)
    own.push_back(step::shard_sequence(all[static_cast<size_t>(s)], parts));
  return own;
}

// Returns the milliseconds of each step, which are equal on all ranks.
std::vector<double> step_times(const Run& run, const price::LinkCost& link, int64_t steps) {
  const config::Config config = make_config(run);
  const int ranks = run.dp * run.cp;
  std::vector<double> times;
  const auto clock = std::make_shared<clock::VirtualClock>(ranks, link);
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), {.observer = clock},
                    [&](const comm::World& world) {
                      const auto assembly = step::assemble(config, world, kVocab);
                      for (int64_t step = 0; step < steps + 1; ++step) {
                        const auto batches = make_batches(run, config, world, step);
                        const bench::StepTime time = bench::timed(world, *clock, [&] {
                          step::train_step(*assembly, {batches, step + 1, step * run.samples, false, {}});
                        });
                        if (step > 0 && world.rank() == 0) times.push_back(time.virtual_s * 1e3);
                      }
                    });
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 1024, steps = argc > 2 ? std::atoll(argv[2]) : 3;
  std::printf(
      "| dp x cp | lengths: log-normal, sigma | link | one size, ms | hybrid, ms | of it (quartiles) |\n"
      "|---|---|---|---|---|---|\n");
  const std::pair<const char*, price::LinkCost> links[] = {{"10 us, 10 GB/s", {10e-6, 10e9}},
                                                           {"50 us, 0.2 GB/s", {50e-6, 0.2e9}}};
  for (const auto& [dp, cp] : {std::pair{2, 2}, {2, 4}}) {
    for (const double sigma : {1.0, 2.0}) {
      for (const auto& [name, link] : links) {
        std::vector<double> fixed, hybrid, ratios;
        const Run run{dp, cp, tokens, 4 * dp, sigma, false};
        Run planned = run;
        planned.hybrid = true;
        for (int turn = 0; turn < 3; ++turn) {  // alternating
          const auto a = step_times(run, link, steps), b = step_times(planned, link, steps);
          fixed.insert(fixed.end(), a.begin(), a.end());
          hybrid.insert(hybrid.end(), b.begin(), b.end());
          for (size_t i = 0; i < a.size(); ++i) ratios.push_back(b[i] / a[i]);
        }
        std::sort(ratios.begin(), ratios.end());
        std::printf("| %d x %d | %.0f | %s | %.1f | %.1f | %.2f (%.2f to %.2f) |\n", dp, cp, sigma, name,
                    bench::median(fixed), bench::median(hybrid), bench::median(ratios), ratios[ratios.size() / 4],
                    ratios[ratios.size() * 3 / 4]);
        std::fflush(stdout);
      }
    }
  }
  return 0;
}

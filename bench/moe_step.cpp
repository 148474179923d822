// moe_step [f32|bf16] [steps] [threads] [layers] [hidden] [heads] [ffn] [experts] [topk] [vocab] [seq] [batch]: one
// rank trains a small MoE model on synthetic tokens with the complete trainer and prints ms per step and tokens/s.
// moe_torch.py is the same model in plain PyTorch, with the same default sizes.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "moe/grouped_library.h"
#include "step/step.h"
#include "mixture.h"
#include "timing.h"

namespace {

using namespace metroplex;
using Clock = std::chrono::steady_clock;

config::Config make_config(const bench::MixtureSizes& sizes, bool half) {
  config::Config config = bench::mixture(sizes, 1);
  if (half) config.precision.params_dtype = "bf16";
  config.model.moe_aux_loss_coeff = "0.01";
  config::check(config, 1);
  return config::resolved(config, 1);
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  const std::string dtype = argc > 1 ? argv[1] : "f32";
  if (dtype != "f32" && dtype != "bf16") {
    std::fprintf(stderr, "moe_step: unknown dtype '%s'; use f32 or bf16\n", dtype.c_str());
    return 2;
  }
  bench::MixtureSizes sizes;
  int64_t steps = 10, threads = 0;
  int64_t* const slots[] = {&steps,         &threads,    &sizes.layers, &sizes.hidden, &sizes.heads, &sizes.ffn,
                            &sizes.experts, &sizes.topk, &sizes.vocab,  &sizes.seq,    &sizes.batch};
  for (int i = 2; i < argc && i < 13; ++i) *slots[i - 2] = std::atoll(argv[i]);
  const config::Config config = make_config(sizes, dtype == "bf16");
  comm::ThreadsOptions options;
  options.threads_per_rank =
      threads > 0 ? static_cast<int>(threads) : static_cast<int>(std::thread::hardware_concurrency());
  comm::run_threads(1, topology::RankGrid(1, config.parallel), options, [&](const comm::World& world) {
    auto assembly = step::assemble(config, world, config.model.vocab_size);
    const std::vector<nn::Microbatch> batches{bench::random_batch(sizes, 0)};
    std::vector<double> times;
    double loss = 0;
    for (int64_t step = 0; step < steps + 2; ++step) {
      const auto start = Clock::now();
      loss = step::train_step(*assembly, {batches, step + 1, step * sizes.batch, false, {}}).loss;
      if (step >= 2) times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    std::printf("ours (%s) %s threads=%d loss=%.4f median %.1f ms  %.1f tok/s\n",
                moe::product_name({.type = dtype == "bf16" ? at::kBFloat16 : at::kFloat}).c_str(), dtype.c_str(),
                options.threads_per_rank, loss, median * 1e3, static_cast<double>(sizes.batch * sizes.seq) / median);
  });
  return 0;
}

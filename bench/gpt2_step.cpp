// gpt2_step [B] [T] [steps] [threads] [f32|bf16] [turns]: one rank trains GPT-2 124M on synthetic tokens with the
// complete trainer. That includes assemble, executor, gradient buffer and AdamW; clipping is off as in the peer.
// Prints tokens/s, peak memory, and the machine's matmul rate in the same run. 0 threads: one per core. With "turns"
// each step waits for a line on stdin and prints its time in seconds (compare_gpt2.py).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "nn/matmul.h"
#include "step/step.h"
#include "timing.h"

namespace {

using namespace metroplex;
using bench::Clock;

// Returns the TFLOP/s of 1024^3 matrix products of this dtype, by the faster of libtorch's and our layers' product on
// this CPU. It is the upper limit on this machine.
double matmul_tflops(at::ScalarType dtype) {
  const at::Tensor a = at::randn({1024, 1024}).to(dtype), b = at::randn({1024, 1024}).to(dtype);
  std::vector<double> times;
  for (int i = 0; i < 30; ++i) {
    const auto start = Clock::now();
    const at::Tensor c = i % 2 == 0 ? at::mm(a, b) : nn::linear_product({}, a, b.t());
    times.push_back(bench::seconds_since(start));
  }
  return 2.0 * 1024 * 1024 * 1024 / *std::min_element(times.begin(), times.end()) / 1e12;
}

config::Config gpt2(int64_t b, int64_t t, bool half) {
  config::Config config;
  if (half) config.precision.params_dtype = "bf16";
  config.model.num_layers = 12;
  config.model.hidden_size = 768;
  config.model.num_attention_heads = 12;
  config.model.vocab_size = 50257;
  config.model.max_position_embeddings = 1024;
  config.model.activation = "gelu_tanh";
  config.train.seq_length = t;
  config.train.micro_batch_size = b;
  config.train.global_batch_size = b;
  config.train.train_iters = 1000;
  config.optim.lr = 1e-4;
  config.optim.lr_decay_style = "constant";
  config.optim.clip_grad = 0;
  config.data.mock_data = true;
  config::check(config, 1);
  return config::resolved(config, 1);
}

nn::Microbatch random_batch(int64_t b, int64_t t) {
  nn::Microbatch batch;
  batch.tokens = at::randint(0, 50257, {b, t}, at::kLong);
  batch.labels = at::randint(0, 50257, {b, t}, at::kLong);
  batch.position_ids = at::arange(t, at::kLong).expand({b, t}).contiguous();
  batch.loss_mask = at::ones({b, t});
  batch.mask_sum = batch.loss_mask.sum(at::kDouble).item<double>();
  batch.counters.samples = nn::make_sample_counters(0, at::arange(b, at::kLong));
  return batch;
}

void wait_for_turn() {
  if (std::getchar() == EOF) std::exit(1);
}
void end_turn(double seconds) {
  std::printf("step %.6f\n", seconds);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  const int64_t b = argc > 1 ? std::atoll(argv[1]) : 4, t = argc > 2 ? std::atoll(argv[2]) : 64,
                steps = argc > 3 ? std::atoll(argv[3]) : 10;
  const int requested = argc > 4 ? std::atoi(argv[4]) : 0,
            threads = requested > 0 ? requested : static_cast<int>(std::thread::hardware_concurrency());
  const std::string dtype = argc > 5 ? argv[5] : "f32";
  const bool turns = argc > 6 && std::string(argv[6]) == "turns";
  if (dtype != "f32" && dtype != "bf16") {
    std::fprintf(stderr, "gpt2_step: unknown dtype '%s'; use f32 or bf16\n", dtype.c_str());
    return 2;
  }
  const bool half = dtype == "bf16";
  const config::Config config = gpt2(b, t, half);
  comm::ThreadsOptions options;
  options.threads_per_rank = threads;
  comm::run_threads(1, topology::RankGrid(1, config.parallel), options, [&](const comm::World& world) {
    auto assembly = step::assemble(config, world, config.model.vocab_size);
    const std::vector<nn::Microbatch> batches{random_batch(b, t)};
    std::vector<double> times;
    const double limit_before = matmul_tflops(half ? at::kBFloat16 : at::kFloat);
    double loss = 0;
    for (int64_t step = 0; step < steps + 2; ++step) {
      if (turns) wait_for_turn();
      const auto start = Clock::now();
      loss = step::train_step(*assembly, {batches, step + 1, step * b, false, {}}).loss;
      const double seconds = bench::seconds_since(start);
      if (turns) end_turn(seconds);
      if (step >= 2) times.push_back(seconds);
    }
    const double tokens_per_second = static_cast<double>(b * t) / bench::median(times);
    const double limit = std::max(limit_before, matmul_tflops(half ? at::kBFloat16 : at::kFloat));
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const double best = static_cast<double>(b * t) / *std::min_element(times.begin(), times.end());
    // 0.74 GFLOP per token: 6 x 124M parameters, without attention scores.
    std::printf(
        "B=%ld T=%ld %s threads=%d loss=%.4f median %.0f ms  %.1f tok/s  best %.1f  peak %.0f MB  matmul %.3f "
        "TFLOP/s  share "
        "%.2f\n",
        static_cast<long>(b), static_cast<long>(t), dtype.c_str(), threads, loss, bench::median(times) * 1e3,
        tokens_per_second, best, static_cast<double>(usage.ru_maxrss) / 1024, limit, best * 0.74e9 / (limit * 1e12));
  });
  return 0;
}

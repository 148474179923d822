// gpt2_step [B] [T] [steps] [threads]: one rank trains GPT-2 124M on synthetic tokens through the whole product
// (assemble, executor, gradient buffer, AdamW, clipping off as in the peer) and prints tokens/s, peak memory, and the
// machine's own matmul rate in the same run.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "train/step.h"

namespace {

using namespace metroplex;
using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Multiply-adds of 1024^3 float matrices, in TFLOP/s: the limit of this machine, as busy as it is now.
double matmul_tflops() {
  const at::Tensor a = at::randn({1024, 1024}), b = at::randn({1024, 1024});
  at::Tensor c = at::mm(a, b);
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    const auto start = Clock::now();
    at::mm_out(c, a, b);
    times.push_back(seconds(start));
  }
  return 2.0 * 1024 * 1024 * 1024 / median(times) / 1e12;
}

config::Config gpt2(int64_t b, int64_t t) {
  config::Config c;
  c.model.num_layers = 12;
  c.model.hidden_size = 768;
  c.model.num_attention_heads = 12;
  c.model.vocab_size = 50257;
  c.model.max_position_embeddings = 1024;
  c.model.activation = "gelu_tanh";
  c.train.seq_length = t;
  c.train.micro_batch_size = b;
  c.train.global_batch_size = b;
  c.train.train_iters = 1000;
  c.optim.lr = 1e-4;
  c.optim.lr_decay_style = "constant";
  c.optim.clip_grad = 0;
  c.data.mock_data = true;
  config::check(c, 1);
  return config::resolved(c, 1);
}

nn::Microbatch random_batch(int64_t b, int64_t t) {
  nn::Microbatch batch;
  batch.tokens = at::randint(0, 50257, {b, t}, at::kLong);
  batch.labels = at::randint(0, 50257, {b, t}, at::kLong);
  batch.position_ids = at::arange(t, at::kLong).expand({b, t}).contiguous();
  batch.loss_mask = at::ones({b, t});
  batch.sample_ids = at::arange(b, at::kLong);
  return batch;
}

}  // namespace

int main(int argc, char** argv) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // as apps/main.cpp does
  mallopt(M_TRIM_THRESHOLD, -1);
  const int64_t b = argc > 1 ? std::atoll(argv[1]) : 4, t = argc > 2 ? std::atoll(argv[2]) : 64,
                steps = argc > 3 ? std::atoll(argv[3]) : 10;
  const int threads = argc > 4 ? std::atoi(argv[4]) : static_cast<int>(std::thread::hardware_concurrency());
  const config::Config config = gpt2(b, t);
  comm::ThreadsOptions options;
  options.threads_per_rank = threads;
  comm::run_threads(1, topology::RankGrid(1, config.parallel), options, [&](const comm::World& world) {
    auto assembly = train::assemble(config, world, config.model.vocab_size);
    const std::vector<nn::Microbatch> batches{random_batch(b, t)};
    std::vector<double> times;
    double loss = 0;
    for (int64_t step = 0; step < steps + 2; ++step) {
      const auto start = Clock::now();
      loss = train::train_step(*assembly, {batches, step + 1, step * b, false, {}}).loss;
      if (step >= 2) times.push_back(seconds(start));
    }
    const double tokens_per_second = static_cast<double>(b * t) / median(times);
    const double limit = matmul_tflops();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    // 0.74 GFLOP a token: 6 x 124M parameters, attention scores left out.
    std::printf(
        "B=%ld T=%ld f32 threads=%d loss=%.4f median %.0f ms  %.1f tok/s  peak %.0f MB  matmul %.3f TFLOP/s  share "
        "%.2f\n",
        static_cast<long>(b), static_cast<long>(t), threads, loss, median(times) * 1e3, tokens_per_second,
        static_cast<double>(usage.ru_maxrss) / 1024, limit, tokens_per_second * 0.74e9 / (limit * 1e12));
  });
  return 0;
}

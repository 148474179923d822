// gpu_step gpt2|llama|mixtral|llama_8b|qwen3_30b [steps] [cuda|cpu] [none|full_iteration] [whole|small] [turns]: one
// rank trains a model of scripts/gpu_bringup.sh in bf16 on synthetic tokens with the complete trainer. Prints ms per
// step, tokens/s and model TFLOP/s. gpu_peer.py has the same models in plain PyTorch. "small" tests the program
// without a GPU. With "turns" each step waits for a line on stdin and prints its time in seconds (compare_gpu.py).
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/launch.h"
#include "device/device.h"
#include "plan/model_flops.h"
#include "step/step.h"
#include "step_cases.h"
#include "timing.h"

namespace {

using namespace metroplex;
using bench::Clock;

struct Arguments {
  std::string model = "gpt2", device = "cuda", impl = "none", size = "whole";
  int64_t steps = 10;
  bool turns = false;
};

nn::Microbatch random_batch(const config::Config& config, at::Device device) {
  const int64_t b = config.train.micro_batch_size, t = config.train.seq_length;
  nn::Microbatch batch;
  batch.tokens = at::randint(0, config.model.vocab_size, {b, t}, at::kLong).to(device);
  batch.labels = at::randint(0, config.model.vocab_size, {b, t}, at::kLong).to(device);
  batch.position_ids = at::arange(t, at::kLong).expand({b, t}).contiguous().to(device);
  batch.loss_mask = at::ones({b, t}).to(device);
  batch.mask_sum = static_cast<double>(b * t);
  batch.counters.samples = nn::make_sample_counters(0, at::arange(b, at::kLong)).to(device);
  return batch;
}

void run(const Arguments& arguments) {
  MPX_CHECK(arguments.device == "cpu" || device::device_count() > 0, "bench", "there is no GPU; give cpu and small");
  const config::Config config =
      bench::gpu_config({arguments.model, arguments.device, arguments.impl, arguments.size == "small"});
  comm::ThreadsOptions options;
  options.gpu = arguments.device == "cuda" ? 0 : -1;
  options.threads_per_rank = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  comm::run_threads(1, topology::RankGrid(1, config.parallel), options, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, config.model.vocab_size);
    const std::vector<nn::Microbatch> batches{random_batch(config, world.device())};
    const int64_t b = config.train.micro_batch_size;
    std::vector<double> times;
    double loss = 0;
    // The first step is eager and the second is captured; neither is timed.
    for (int64_t step = 0; step < arguments.steps + 2; ++step) {
      if (arguments.turns && std::getchar() == EOF) std::exit(1);
      const auto start = Clock::now();
      loss = step::train_step(*assembly, {batches, step + 1, step * b, false, {}}).loss;
      const double seconds = bench::seconds_since(start);
      if (arguments.turns) {
        std::printf("step %.6f\n", seconds);
        std::fflush(stdout);
      }
      if (step >= 2) times.push_back(seconds);
    }
    const double median = bench::median(times), tokens = static_cast<double>(b * config.train.seq_length);
    plan::StepTokens of_step;
    of_step.batch_size = b;
    const double flops = plan::step_flops(plan::model_shape(config, config.model.vocab_size), of_step);
    const double reserved =
        arguments.device == "cuda" ? static_cast<double>(device::allocator_peak().reserved_bytes) : 0;
    std::printf("%s %s %s loss %.4f median %.2f ms  %.0f tok/s  %.1f TFLOP/s  reserved %.2f GiB\n",
                arguments.model.c_str(), arguments.device.c_str(), arguments.impl.c_str(), loss, median * 1e3,
                tokens / median, flops / median / 1e12, reserved / (1 << 30));
  });
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  Arguments arguments;
  if (argc > 1) arguments.model = argv[1];
  if (argc > 2) arguments.steps = std::max(1LL, std::atoll(argv[2]));
  std::string* const words[] = {&arguments.device, &arguments.impl, &arguments.size};
  for (int i = 3; i < argc && i < 6; ++i) *words[i - 3] = argv[i];
  arguments.turns = argc > 6 && std::string(argv[6]) == "turns";
  try {
    run(arguments);
  } catch (const base::Error& error) {
    std::fprintf(stderr, "gpu_step: %s\n", error.what());
    return 2;
  }
  return 0;
}

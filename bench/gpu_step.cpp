// gpu_step gpt2|llama|mixtral [steps] [cuda|cpu] [none|full_iteration] [whole|small] [turns]: one rank trains a model
// of scripts/gpu_bringup.sh in bf16 on synthetic tokens with the complete trainer. Prints ms per step, tokens/s and
// model TFLOP/s. gpu_peer.py has the same models in plain PyTorch. "small" tests the program without a GPU. With
// "turns" each step waits for a line on stdin and prints its time in seconds (compare_gpu.py).
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/launch.h"
#include "config/validate.h"
#include "device/device.h"
#include "plan/model_flops.h"
#include "timing.h"
#include "step/step.h"

namespace {

using namespace metroplex;
using bench::Clock;

struct Arguments {
  std::string model = "gpt2", device = "cuda", impl = "none", size = "whole";
  int64_t steps = 10;
  bool turns = false;
  bool small() const { return size == "small"; }
};

// GPT-2 124M; four layers of Llama 3.2 1B; two layers of Mixtral at half width.
config::Config model_sizes(const Arguments& arguments) {
  config::Config config;
  if (arguments.model == "gpt2") {
    config.model.num_layers = arguments.small() ? 2 : 12;
    config.model.hidden_size = arguments.small() ? 64 : 768;
    config.model.num_attention_heads = arguments.small() ? 2 : 12;
    config.model.vocab_size = arguments.small() ? 512 : 50257;
    config.model.activation = "gelu_tanh";
    config.train.seq_length = arguments.small() ? 32 : 1024;
    config.train.micro_batch_size = arguments.small() ? 2 : 8;
    return config;
  }
  MPX_CHECK(arguments.model == "llama" || arguments.model == "mixtral", "bench", "unknown model ", arguments.model,
            "; use gpt2, llama or mixtral");
  const bool experts = arguments.model == "mixtral";
  config.model.num_layers = arguments.small() || experts ? 2 : 4;
  config.model.hidden_size = arguments.small() ? 64 : 2048;
  config.model.num_attention_heads = arguments.small() ? 4 : experts ? 16 : 32;
  config.model.num_query_groups = arguments.small() ? 2 : experts ? 4 : 8;
  config.model.ffn_hidden_size = arguments.small() ? 128 : experts ? 7168 : 8192;
  config.model.vocab_size = arguments.small() ? 512 : 32000;
  config.model.normalization = "RMSNorm";
  config.model.activation = "silu";
  config.model.gated_linear_unit = true;
  config.model.add_bias_linear = false;
  config.model.position_embedding_type = "rope";
  config.model.untie_embeddings_and_output_weights = true;
  if (experts) {
    config.model.num_moe_experts = 8;
    config.model.moe_router_topk = 2;
    config.model.moe_aux_loss_coeff = "0.01";
    config.model.moe_grouped_gemm = true;
  }
  config.train.seq_length = arguments.small() ? 32 : 2048;
  config.train.micro_batch_size = 2;
  return config;
}

config::Config make_config(const Arguments& arguments) {
  config::Config config = model_sizes(arguments);
  config.model.max_position_embeddings = config.train.seq_length;
  config.precision.params_dtype = "bf16";
  config.train.global_batch_size = config.train.micro_batch_size;
  config.train.train_iters = 1000;
  config.train.cuda_graph_impl = arguments.impl;
  config.train.cuda_graph_warmup_steps = 1;
  config.optim.lr = 1e-4;
  config.optim.lr_decay_style = "constant";
  config.optim.clip_grad = 0;
  config.data.mock_data = true;
  config.run.device = arguments.device;
  config::check(config, 1);
  return config::resolved(config, 1);
}

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
  const config::Config config = make_config(arguments);
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

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
config::Config sizes_of(const Arguments& a) {
  config::Config c;
  if (a.model == "gpt2") {
    c.model.num_layers = a.small() ? 2 : 12;
    c.model.hidden_size = a.small() ? 64 : 768;
    c.model.num_attention_heads = a.small() ? 2 : 12;
    c.model.vocab_size = a.small() ? 512 : 50257;
    c.model.activation = "gelu_tanh";
    c.train.seq_length = a.small() ? 32 : 1024;
    c.train.micro_batch_size = a.small() ? 2 : 8;
    return c;
  }
  MPX_CHECK(a.model == "llama" || a.model == "mixtral", "bench", "unknown model ", a.model,
            "; use gpt2, llama or mixtral");
  const bool experts = a.model == "mixtral";
  c.model.num_layers = a.small() || experts ? 2 : 4;
  c.model.hidden_size = a.small() ? 64 : 2048;
  c.model.num_attention_heads = a.small() ? 4 : experts ? 16 : 32;
  c.model.num_query_groups = a.small() ? 2 : experts ? 4 : 8;
  c.model.ffn_hidden_size = a.small() ? 128 : experts ? 7168 : 8192;
  c.model.vocab_size = a.small() ? 512 : 32000;
  c.model.normalization = "RMSNorm";
  c.model.activation = "silu";
  c.model.gated_linear_unit = true;
  c.model.add_bias_linear = false;
  c.model.position_embedding_type = "rope";
  c.model.untie_embeddings_and_output_weights = true;
  if (experts) {
    c.model.num_moe_experts = 8;
    c.model.moe_router_topk = 2;
    c.model.moe_aux_loss_coeff = "0.01";
    c.model.moe_grouped_gemm = true;
  }
  c.train.seq_length = a.small() ? 32 : 2048;
  c.train.micro_batch_size = 2;
  return c;
}

config::Config config_of(const Arguments& a) {
  config::Config c = sizes_of(a);
  c.model.max_position_embeddings = c.train.seq_length;
  c.precision.params_dtype = "bf16";
  c.train.global_batch_size = c.train.micro_batch_size;
  c.train.train_iters = 1000;
  c.train.cuda_graph_impl = a.impl;
  c.train.cuda_graph_warmup_steps = 1;
  c.optim.lr = 1e-4;
  c.optim.lr_decay_style = "constant";
  c.optim.clip_grad = 0;
  c.data.mock_data = true;
  c.run.device = a.device;
  config::check(c, 1);
  return config::resolved(c, 1);
}

nn::Microbatch random_batch(const config::Config& c, at::Device device) {
  const int64_t b = c.train.micro_batch_size, t = c.train.seq_length;
  nn::Microbatch batch;
  batch.tokens = at::randint(0, c.model.vocab_size, {b, t}, at::kLong).to(device);
  batch.labels = at::randint(0, c.model.vocab_size, {b, t}, at::kLong).to(device);
  batch.position_ids = at::arange(t, at::kLong).expand({b, t}).contiguous().to(device);
  batch.loss_mask = at::ones({b, t}).to(device);
  batch.mask_sum = static_cast<double>(b * t);
  batch.sample_counters = nn::counters_of_samples(0, at::arange(b, at::kLong)).to(device);
  return batch;
}

void run(const Arguments& a) {
  MPX_CHECK(a.device == "cpu" || device::device_count() > 0, "bench", "there is no GPU; give cpu and small");
  const config::Config config = config_of(a);
  comm::ThreadsOptions options;
  options.gpu = a.device == "cuda" ? 0 : -1;
  options.threads_per_rank = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  comm::run_threads(1, topology::RankGrid(1, config.parallel), options, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, config.model.vocab_size);
    const std::vector<nn::Microbatch> batches{random_batch(config, world.device())};
    const int64_t b = config.train.micro_batch_size;
    std::vector<double> times;
    double loss = 0;
    // The first step is eager and the second is captured; neither is timed.
    for (int64_t step = 0; step < a.steps + 2; ++step) {
      if (a.turns && std::getchar() == EOF) std::exit(1);
      const auto start = Clock::now();
      loss = step::train_step(*assembly, {batches, step + 1, step * b, false, {}}).loss;
      const double seconds = bench::seconds_since(start);
      if (a.turns) {
        std::printf("step %.6f\n", seconds);
        std::fflush(stdout);
      }
      if (step >= 2) times.push_back(seconds);
    }
    const double median = bench::median(times), tokens = static_cast<double>(b * config.train.seq_length);
    plan::StepTokens of_step;
    of_step.batch_size = b;
    const double flops = plan::step_flops(plan::model_shape(config, config.model.vocab_size), of_step);
    const double reserved = a.device == "cuda" ? static_cast<double>(device::allocator_peak().reserved_bytes) : 0;
    std::printf("%s %s %s loss %.4f median %.2f ms  %.0f tok/s  %.1f TFLOP/s  reserved %.2f GiB\n", a.model.c_str(),
                a.device.c_str(), a.impl.c_str(), loss, median * 1e3, tokens / median, flops / median / 1e12,
                reserved / (1 << 30));
  });
}

}  // namespace

int main(int argc, char** argv) {
  bench::as_metroplex_runs(argv);
  Arguments a;
  if (argc > 1) a.model = argv[1];
  if (argc > 2) a.steps = std::max(1LL, std::atoll(argv[2]));
  std::string* const words[] = {&a.device, &a.impl, &a.size};
  for (int i = 3; i < argc && i < 6; ++i) *words[i - 3] = argv[i];
  a.turns = argc > 6 && std::string(argv[6]) == "turns";
  try {
    run(a);
  } catch (const base::Error& error) {
    std::fprintf(stderr, "gpu_step: %s\n", error.what());
    return 2;
  }
  return 0;
}

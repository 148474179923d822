// moe_step [f32|bf16] [steps] [threads] [layers] [hidden] [heads] [ffn] [experts] [topk] [vocab] [seq] [batch]: one
// rank trains a small mixture of experts on synthetic tokens through the whole product and prints ms a step and
// tokens/s. moe_torch.py is the same model, with the same sizes unless told otherwise, in plain PyTorch.
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
#include "moe/grouped_product.h"
#include "train/step.h"
#include "timing.h"

namespace {

using namespace metroplex;
using Clock = std::chrono::steady_clock;

struct Sizes {
  int64_t steps = 10, threads = 0, layers = 4, hidden = 512, heads = 8, ffn = 1024, experts = 8, topk = 2,
          vocab = 8192, seq = 256, batch = 4;
};

config::Config mixture(const Sizes& s, bool half) {
  config::Config c;
  if (half) c.precision.params_dtype = "bf16";
  c.model.num_layers = s.layers;
  c.model.hidden_size = s.hidden;
  c.model.num_attention_heads = s.heads;
  c.model.ffn_hidden_size = s.ffn;
  c.model.vocab_size = s.vocab;
  c.model.max_position_embeddings = s.seq;
  c.model.normalization = "RMSNorm";
  c.model.activation = "silu";
  c.model.gated_linear_unit = true;
  c.model.add_bias_linear = false;
  c.model.num_moe_experts = s.experts;
  c.model.moe_router_topk = s.topk;
  c.model.moe_aux_loss_coeff = "0.01";
  c.train.seq_length = s.seq;
  c.train.micro_batch_size = s.batch;
  c.train.global_batch_size = s.batch;
  c.train.train_iters = 1000;
  c.optim.lr = 1e-4;
  c.optim.lr_decay_style = "constant";
  c.optim.clip_grad = 0;
  c.data.mock_data = true;
  config::check(c, 1);
  return config::resolved(c, 1);
}

nn::Microbatch random_batch(const Sizes& s) {
  nn::Microbatch batch;
  batch.tokens = at::randint(0, s.vocab, {s.batch, s.seq}, at::kLong);
  batch.labels = at::randint(0, s.vocab, {s.batch, s.seq}, at::kLong);
  batch.position_ids = at::arange(s.seq, at::kLong).expand({s.batch, s.seq}).contiguous();
  batch.loss_mask = at::ones({s.batch, s.seq});
  batch.mask_sum = batch.loss_mask.sum(at::kDouble).item<double>();
  batch.sample_counters = nn::counters_of_samples(0, at::arange(s.batch, at::kLong));
  return batch;
}

}  // namespace

int main(int argc, char** argv) {
  bench::as_metroplex_runs(argv);
  const std::string dtype = argc > 1 ? argv[1] : "f32";
  if (dtype != "f32" && dtype != "bf16") {
    std::fprintf(stderr, "moe_step: unknown dtype '%s'; use f32 or bf16\n", dtype.c_str());
    return 2;
  }
  Sizes s;
  int64_t* const slots[] = {&s.steps,   &s.threads, &s.layers, &s.hidden, &s.heads, &s.ffn,
                            &s.experts, &s.topk,    &s.vocab,  &s.seq,    &s.batch};
  for (int i = 2; i < argc && i < 13; ++i) *slots[i - 2] = std::atoll(argv[i]);
  const config::Config config = mixture(s, dtype == "bf16");
  comm::ThreadsOptions options;
  options.threads_per_rank =
      s.threads > 0 ? static_cast<int>(s.threads) : static_cast<int>(std::thread::hardware_concurrency());
  comm::run_threads(1, topology::RankGrid(1, config.parallel), options, [&](const comm::World& world) {
    auto assembly = train::assemble(config, world, config.model.vocab_size);
    const std::vector<nn::Microbatch> batches{random_batch(s)};
    std::vector<double> times;
    double loss = 0;
    for (int64_t step = 0; step < s.steps + 2; ++step) {
      const auto start = Clock::now();
      loss = train::train_step(*assembly, {batches, step + 1, step * s.batch, false, {}}).loss;
      if (step >= 2) times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    std::printf("ours (%s) %s threads=%d loss=%.4f median %.1f ms  %.1f tok/s\n",
                moe::product_name({}, dtype == "bf16" ? at::kBFloat16 : at::kFloat).c_str(), dtype.c_str(),
                options.threads_per_rank, loss, median * 1e3, static_cast<double>(s.batch * s.seq) / median);
  });
  return 0;
}

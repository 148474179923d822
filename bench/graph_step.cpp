// graph_step [rounds]: host time of a training step, eager and replayed, over sizes of models. Replays one graph
// (train.cuda_graph_impl: full_iteration) or graphs of layers, whole or attention alone (transformer_engine). The
// variants alternate. Also prints the time of a capture, and the memory of graph, static inputs and pool. One rank,
// one thread and two.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

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
#include "step/partial_graphs.h"
#include "step/step.h"
#include "step/step_graphs.h"
#include "timing.h"

namespace {

using namespace metroplex;
using bench::Clock;

struct Size {
  const char* name;
  int64_t layers, hidden, heads, vocab, sequence, microbatches;
  int rounds;
};

struct Capture {
  const char* name;
  config::CudaGraphImpl impl;
  std::vector<std::string> modules;
};

config::Config gpt(const Size& size, bool half, const Capture& capture) {
  config::Config config;
  if (half) config.precision.params_dtype = "bf16";
  config.model.num_layers = size.layers;
  config.model.hidden_size = size.hidden;
  config.model.num_attention_heads = size.heads;
  config.model.vocab_size = size.vocab;
  config.model.max_position_embeddings = size.sequence;
  config.train.seq_length = size.sequence;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = size.microbatches;
  config.train.train_iters = 1000;
  config.optim.lr = 1e-4;
  config.optim.lr_decay_style = "constant";
  config.data.mock_data = true;
  config.train.cuda_graph_impl = capture.impl;
  config.train.cuda_graph_modules = capture.modules;
  config.train.cuda_graph_warmup_steps = 1;
  config::check(config, 1);
  return config::resolved(config, 1);
}

std::vector<nn::Microbatch> random_batches(const Size& size) {
  std::vector<nn::Microbatch> batches;
  for (int64_t m = 0; m < size.microbatches; ++m) {
    nn::Microbatch batch;
    batch.tokens = at::randint(0, size.vocab, {1, size.sequence}, at::kLong);
    batch.labels = at::randint(0, size.vocab, {1, size.sequence}, at::kLong);
    batch.position_ids = at::arange(size.sequence, at::kLong).unsqueeze(0).contiguous();
    batch.loss_mask = at::ones({1, size.sequence});
    batch.mask_sum = static_cast<double>(size.sequence);
    nn::set_counters(batch, 1, at::full({1}, m, at::kLong));
    batches.push_back(std::move(batch));
  }
  return batches;
}

struct Sizes {
  int64_t graphs;
  graph::GraphSize graph;
  int64_t static_inputs;
  graph::GraphPool::Bytes pool;
};

Sizes graph_sizes(const step::Assembly& assembly) {
  if (assembly.graphs.step) {
    const step::StepGraphs::Sizes sizes = assembly.graphs.step->sizes();
    return {1, sizes.training, sizes.static_inputs, sizes.pool};
  }
  const pipeline::GraphSizes sizes = assembly.graphs.partial->sizes().training;
  return {sizes.graphs, sizes.size, sizes.static_inputs + sizes.gradients, sizes.pools};
}

void compare(const Size& size, bool half, int threads, double rounds, const Capture& how) {
  comm::ThreadsOptions options;
  options.threads_per_rank = threads;
  const config::Config plain = gpt(size, half, {"", config::CudaGraphImpl::none, {}}),
                       captured = gpt(size, half, how);
  comm::run_threads(1, topology::RankGrid(1, plain.parallel), options, [&](const comm::World& world) {
    auto eager = step::assemble(plain, world, plain.model.vocab_size);
    auto graph = step::assemble(captured, world, captured.model.vocab_size);
    const auto batches = random_batches(size);
    const auto step = [&](step::Assembly& assembly, int64_t number) {
      const auto start = Clock::now();
      step::train_step(assembly, {batches, number + 1, number * size.microbatches, false, {}});
      return bench::seconds_since(start);
    };
    for (int64_t i = 0; i < 2; ++i) step(*eager, i);
    step(*graph, 0);
    const double capture = step(*graph, 1);
    std::vector<double> eager_times, graph_times, shares;
    const int64_t count = std::max<int64_t>(3, static_cast<int64_t>(size.rounds * rounds));
    for (int64_t i = 2; i < count + 2; ++i) {
      eager_times.push_back(step(*eager, i));
      graph_times.push_back(step(*graph, i));
      shares.push_back(graph_times.back() / eager_times.back());
    }
    const Sizes sizes = graph_sizes(*graph);
    std::printf(
        "%-6s %s %d thread(s), %s: eager %9.3f ms, replay %9.3f ms, ratio of medians %.3f, median of ratios %.3f; "
        "capture "
        "%8.2f ms; %ld graphs, %ld operations, %.2f MB, static inputs %.3f MB, pool %.1f MB at most, %.1f MB taken\n",
        size.name, half ? "bf16" : "fp32", threads, how.name, bench::median(eager_times) * 1e3,
        bench::median(graph_times) * 1e3, bench::median(graph_times) / bench::median(eager_times),
        bench::median(shares), capture * 1e3, static_cast<long>(sizes.graphs), static_cast<long>(sizes.graph.nodes),
        static_cast<double>(sizes.graph.bytes) / 1e6, static_cast<double>(sizes.static_inputs) / 1e6,
        static_cast<double>(sizes.pool.peak) / 1e6, static_cast<double>(sizes.pool.reserved) / 1e6);
    std::fflush(stdout);
  });
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  const double rounds = argc > 1 ? std::atof(argv[1]) : 1;
  const std::vector<Size> sizes{{"tiny", 2, 32, 4, 128, 16, 1, 400},
                                {"tiny8", 2, 32, 4, 128, 16, 8, 100},
                                {"small", 4, 128, 4, 1024, 64, 1, 100},
                                {"medium", 6, 256, 8, 8192, 128, 1, 40},
                                {"124M", 12, 768, 12, 50304, 256, 1, 5}};
  const std::vector<Capture> captures{{"the step", config::CudaGraphImpl::full_iteration, {}},
                                      {"layers", config::CudaGraphImpl::transformer_engine, {}},
                                      {"attention", config::CudaGraphImpl::transformer_engine, {"attn"}}};
  for (const bool half : {false, true}) {
    for (const Size& size : sizes) {
      for (const int threads : {1, 2}) {
        for (const Capture& capture : captures) compare(size, half, threads, rounds, capture);
      }
    }
  }
  return 0;
}

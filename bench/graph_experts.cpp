// graph_experts [rounds]: host time of an MoE layer, eager and replayed. The experts' load is even, skewed (Zipf,
// exponent 1), or all on one expert. Also prints the cost of graphs, static inputs, tensors between graphs, pools and
// replicas. The time of a layer is half the additional time of a training step with two more layers. The model is so
// small that host overhead dominates. Steps alternate; 2 ranks of one thread share the experts.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "forecast/memory_report.h"
#include "step/partial_graphs.h"
#include "step/step.h"
#include "step/step_graphs.h"
#include "mixture.h"
#include "timing.h"

namespace {

using namespace metroplex;
using bench::Clock;
using config::CudaGraphImpl;

constexpr int64_t kRanks = 2, kLayers = 2, kMore = 2;

struct Load {
  const char* name;
  double skew;  // 0: even
};
struct Variant {
  const char* name;
  CudaGraphImpl impl;
  std::vector<std::string> modules;
  bool buffers;  // static_buffer with capacity for all rows, else alltoall
  bool replicas;
};

config::Config make_config(const Load& load, const Variant& way, int64_t layers) {
  const bench::MixtureSizes sizes{layers, 32, 4, 32, 8, 1, 128, 16, 1};
  config::Config config = bench::mixture(sizes, kRanks);
  config.model.moe_aux_loss_coeff = "0.01";
  config.model.moe_router_pre_softmax = true;  // with one expert per token
  config.model.moe_router_force_load_balancing = load.skew == 0;
  config.model.moe_router_force_skew = load.skew;
  if (way.buffers) {
    config.model.moe_token_dispatcher_type = "static_buffer";
    config.model.moe_expert_rank_capacity_factor = way.replicas ? 1 : kRanks;
  } else {
    config.model.moe_token_dispatcher_type = "alltoall";
  }
  if (way.replicas) {
    config.model.moe_enable_echo = true;
    config.model.moe_num_echo_experts = sizes.experts;
    config.model.moe_echo_planner = "exact";
  }
  config.train.cuda_graph_impl = way.impl;
  config.train.cuda_graph_modules = way.modules;
  config.train.cuda_graph_warmup_steps = 1;
  config::check(config, kRanks);
  return config::resolved(config, kRanks);
}

struct Run {
  std::unique_ptr<step::Assembly> assembly;
  std::vector<nn::Microbatch> batches;
  int64_t steps = 0;

  Run(const config::Config& config, const comm::World& world)
      : assembly(step::assemble(config, world, config.model.vocab_size)) {
    nn::Microbatch batch = bench::random_batch({.vocab = 128, .seq = 16, .batch = 1}, world.rank());
    nn::set_counters(batch, 1, at::full({1}, world.rank(), at::kLong));
    batches = {batch};
  }
  double step() {
    const auto start = Clock::now();
    step::train_step(*assembly, {batches, steps + 1, steps * kRanks, false, {}});
    ++steps;
    return bench::seconds_since(start);
  }
};

void print_memory(const step::Assembly& assembly) {
  const auto kib = [](int64_t bytes) { return static_cast<double>(bytes) / 1024; };
  if (assembly.graphs.step) {
    const auto sizes = assembly.graphs.step->sizes();
    std::printf("; KiB: graphs %.1f, static inputs %.1f, handed on 0, pool %.1f", kib(sizes.training.bytes),
                kib(sizes.static_inputs), kib(sizes.pool.reserved));
  } else if (assembly.graphs.partial) {
    const pipeline::GraphSizes sizes = assembly.graphs.partial->sizes().training;
    std::printf("; KiB: graphs %.1f, static inputs %.1f, gradients %.1f, handed on %.1f, pools %.1f",
                kib(sizes.size.bytes), kib(sizes.static_inputs), kib(sizes.gradients), kib(sizes.results),
                kib(sizes.pools.reserved));
  }
}

void compare(const Load& load, const std::vector<Variant>& ways, int64_t rounds) {
  comm::ThreadsOptions options;
  options.threads_per_rank = 1;
  const config::Config first = make_config(load, ways[0], kLayers);
  comm::run_threads(kRanks, topology::RankGrid(kRanks, first.parallel), options, [&](const comm::World& world) {
    std::vector<Run> few, more;
    for (const Variant& way : ways) {
      few.emplace_back(make_config(load, way, kLayers), world);
      more.emplace_back(make_config(load, way, kLayers + kMore), world);
    }
    std::vector<std::vector<double>> steps(ways.size()), layers(ways.size());
    for (int64_t round = -3; round < rounds; ++round) {
      for (size_t w = 0; w < ways.size(); ++w) {
        const double shallow = few[w].step(), deep = more[w].step();
        if (round < 0) continue;
        steps[w].push_back(shallow);
        layers[w].push_back((deep - shallow) / kMore);
      }
    }
    if (world.rank() != 0) return;
    const double eager = bench::median(layers[0]);
    for (size_t w = 0; w < ways.size(); ++w) {
      std::printf("%-7s %-34s a layer %7.3f ms, to eager's %.2f; step of %ld layers %7.3f ms", load.name,
                  ways[w].name, bench::median(layers[w]) * 1e3, bench::median(layers[w]) / eager,
                  static_cast<long>(kLayers), bench::median(steps[w]) * 1e3);
      print_memory(*few[w].assembly);
      std::printf("\n");
    }
    std::fflush(stdout);
  });
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  const int64_t rounds = argc > 1 ? std::max<int64_t>(1, std::atoll(argv[1])) : 200;
  const std::vector<std::string> routes{"attn", "moe_router", "moe_preprocess"};
  const std::vector<Variant> ways{
      {"eager, alltoall", CudaGraphImpl::none, {}, false, false},
      {"attn, router, preprocess; alltoall", CudaGraphImpl::transformer_engine, routes, false, false},
      {"eager, static_buffer", CudaGraphImpl::none, {}, true, false},
      {"attn, router, preprocess", CudaGraphImpl::transformer_engine, routes, true, false},
      {"layers", CudaGraphImpl::transformer_engine, {}, true, false},
      {"the step", CudaGraphImpl::full_iteration, {}, true, false},
      {"the step with clones", CudaGraphImpl::full_iteration, {}, true, true}};
  for (const Load& load : {Load{"even", 0}, Load{"skewed", 1}, Load{"one", 60}}) compare(load, ways, rounds);
  return 0;
}

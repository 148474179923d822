// context_overlap [tokens] [repetitions]: core attention of one sequence over context-parallel ranks, forward and
// backward, by the virtual clock (docs/topology.md). Compares the exchanges on links of several speeds with a free
// link, with serialized exchange and work, and with the bound. In the bound a ring hop takes the longer of work and
// link: (cp - 1) max(c, x) + c forward, and the same plus one hop of gradients backward. c = work / cp and x =
// latency + bytes / bandwidth.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "clocked_steps.h"
#include "nn/core_attention.h"
#include "step/sequence_part.h"

namespace {

using namespace metroplex;
using config::CpCommType;

constexpr int64_t kHeads = 8, kSize = 32;

struct Times {
  double forward = 0, backward = 0;  // seconds, of the slowest rank
};

nn::Microbatch whole_batch(int64_t tokens) {
  nn::Microbatch batch = nn::empty_microbatch({1, tokens});
  for (at::Tensor* x : {&batch.tokens, &batch.labels, &batch.position_ids}) x->zero_();
  batch.loss_mask.fill_(1);
  return batch;
}

Times measure(int cp, int64_t tokens, CpCommType exchange, const price::LinkCost& link, int repetitions) {
  config::Parallel parallel;
  parallel.context_parallel_size = cp;
  std::vector<std::vector<Times>> all(static_cast<size_t>(cp));
  const auto clock = std::make_shared<clock::VirtualClock>(cp, link);
  comm::run_threads(cp, topology::RankGrid(cp, parallel), {.observer = clock}, [&](const comm::World& world) {
    const at::NoGradGuard no_grad;
    const comm::Group& group = world.groups().cp;
    const nn::Microbatch batch = step::shard_sequence(whole_batch(tokens), step::sequence_sharding(parallel, group));
    nn::CoreSpec spec;
    spec.heads = spec.groups = kHeads, spec.head_dim = spec.v_head_dim = kSize;
    spec.softmax_scale = 1 / std::sqrt(static_cast<double>(kSize));
    spec.cp = group, spec.exchange = exchange;
    const nn::CoreAttention core(spec, {});
    const auto random = [&] { return at::randn({tokens / cp, 1, kHeads, kSize}); };
    const at::Tensor q = random(), k = random(), v = random();
    const nn::Positions rows = nn::sequence_positions(batch);
    for (int i = 0; i < repetitions + 1; ++i) {
      nn::CoreSaved saved;
      at::Tensor out;
      Times times;
      times.forward = bench::timed(world, *clock, [&] {
                        out = core.forward(q, k, v, {rows, rows}, batch, &saved).x;
                      }).virtual_s;
      times.backward = bench::timed(world, *clock, [&] { core.backward(out, saved); }).virtual_s;
      if (i > 0) all[static_cast<size_t>(world.rank())].push_back(times);
    }
  });
  // Between barriers all ranks have the same time.
  const auto middle = [&](double Times::*of) {
    std::vector<double> values;
    for (const Times& times : all[0]) values.push_back(times.*of);
    return bench::median(values);
  };
  return {middle(&Times::forward), middle(&Times::backward)};
}

void print(int cp, int64_t tokens, CpCommType exchange, const price::LinkCost& link, const Times& work,
           int repetitions) {
  const Times got = measure(cp, tokens, exchange, link, repetitions);
  const double barrier = link.latency_s,
               hop = link.seconds(static_cast<double>(tokens / cp * kHeads * 2 * kSize * 4));
  // Both ends of `timed` are barriers; one of them counts.
  const auto line = [&](const char* way, double free, double virtual_s, int hops, int gradients) {
    const double c = free / cp;
    std::printf("| %d | %s | %s | %.2f | %.2f | %.2f |", cp, config::text_of(exchange), way, free * 1e3,
                hop * (hops + gradients) * 1e3, (virtual_s - barrier) * 1e3);
    if (exchange != CpCommType::p2p) {
      std::printf(" | |\n");
      return;
    }
    const double bound = (cp - 1) * std::max(c, hop) + c + (gradients > 0 ? hop : 0);
    std::printf(" %.2f | %.2f |\n", bound * 1e3, (free + hop * (hops + gradients)) * 1e3);
  };
  line("forward", work.forward, got.forward, cp - 1, 0);
  line("backward", work.backward, got.backward, cp - 1, cp);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 4096;
  const int repetitions = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
  for (const price::LinkCost& link :
       {price::LinkCost{2e-6, 50e9}, price::LinkCost{10e-6, 0.5e9}, price::LinkCost{10e-6, 0.1e9}}) {
    std::printf("%lld tokens, a link of %.0f us and %.1f GB/s; milliseconds:\n\n", static_cast<long long>(tokens),
                link.latency_s * 1e6, link.bytes_per_s * 1e-9);
    std::printf("| cp | exchange | | on a free link | bytes of a ring over the link | measured | bound | one after ");
    std::printf("the other |\n|---|---|---|---|---|---|---|---|\n");
    for (const int cp : {2, 4, 8}) {
      for (const CpCommType exchange : {CpCommType::p2p, CpCommType::all_gather, CpCommType::a2a})
        print(cp, tokens, exchange, link, measure(cp, tokens, exchange, {}, repetitions), repetitions);
    }
    std::printf("\n");
  }
  return 0;
}

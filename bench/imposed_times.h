// Training steps of the MoE model of mixture.h in virtual time with imposed times: attention and experts take given
// times, exchanges of rows take the time of a link, and everything else takes none. So times are exact for any number
// of ranks on any machine.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "clock/virtual_clock.h"
#include "comm/collectives.h"
#include "comm/launch.h"
#include "config/validate.h"
#include "mixture.h"
#include "step/step.h"

namespace metroplex::bench {

struct ImposedTimes {
  double attention = 1, experts = 1;  // forward of one layer and microbatch; its backward takes twice as long
};

// One computation of a rank in virtual time.
struct ImposedSpan {
  double start_s = 0, end_s = 0;
  bool backward = false;
};

class ImposedClock final : public nn::StageObserver {
 public:
  // Appends the computations to `spans` if it is not null; `now` returns the virtual time.
  ImposedClock(double& seconds, const nn::Blocks& blocks, const ImposedTimes& times,
               std::vector<ImposedSpan>* spans = nullptr, std::function<double()> now = nullptr)
      : seconds_(seconds), blocks_(blocks), times_(times), spans_(spans), now_(std::move(now)) {}
  void before(const nn::RegionEvent& event) override {
    const std::string& name =
        blocks_[static_cast<size_t>(event.block)].segments[static_cast<size_t>(event.segment)]->name();
    const double forward = name.ends_with("attention")  ? times_.attention
                           : name.ends_with(".experts") ? times_.experts
                                                        : 0;
    const bool backward = event.pass == nn::Pass::backward;
    const double time = forward * (backward ? 2 : 1);
    if (spans_ != nullptr && time > 0) spans_->push_back({now_(), now_() + time, backward});
    seconds_ += time;
  }
  void after(const nn::RegionEvent&) override {}

 private:
  double& seconds_;
  const nn::Blocks& blocks_;
  ImposedTimes times_;
  std::vector<ImposedSpan>* spans_;
  std::function<double()> now_;
};

struct ImposedRun {
  int ranks = 4;  // all share the experts
  int64_t layers = 2, microbatches = 8;
  bool overlaps = false;
  ImposedTimes times;
  double link = 1;  // time of all exchanges of a step, relative to its computation; 0: free
};

struct ImposedStep {
  double seconds = 0, compute_s = 0;  // of the slowest rank
  std::vector<ImposedSpan> spans{};   // of rank 0, from the start of the step
};

inline ImposedStep time_step(const ImposedRun& run) {
  const MixtureSizes sizes{run.layers, 256, 2, 8, run.ranks, 2, 64, 64, 1};
  config::Config config = mixture(sizes, run.ranks);
  config.model.moe_router_force_load_balancing = true;
  config.model.moe_token_dispatcher_type = "alltoall";
  config.parallel.overlap_moe_expert_parallel_comm = run.overlaps;
  config.train.global_batch_size = run.microbatches * run.ranks;
  config::check(config, run.ranks);
  config = config::resolved(config, run.ranks);
  const double rows = static_cast<double>(sizes.seq * sizes.topk) * (run.ranks - 1) / run.ranks;
  const double exchanged = 4 * rows * static_cast<double>(sizes.hidden) * 4;  // bytes per layer and microbatch
  const double computed = 3 * (run.times.attention + run.times.experts);
  price::LinkCost link;
  if (run.link > 0) link.bytes_per_s = exchanged / (run.link * computed);
  std::vector<double> cpu(static_cast<size_t>(run.ranks), 0), ends(cpu), computing(cpu);
  std::vector<ImposedSpan> spans;
  const auto clock = std::make_shared<clock::VirtualClock>(run.ranks, link,
                                                           [&](int rank) { return cpu[static_cast<size_t>(rank)]; });
  comm::run_threads(run.ranks, topology::RankGrid(run.ranks, config.parallel), {.observer = clock},
                    [&](const comm::World& world) {
                      const auto rank = static_cast<size_t>(world.rank());
                      const auto assembly = step::assemble(config, world, sizes.vocab);
                      pipeline::Stage& stage = *assembly->model.stages.at(0);
                      ImposedClock imposed(cpu[rank], stage.blocks(), run.times, rank == 0 ? &spans : nullptr,
                                           [&] { return clock->now(world.rank()); });
                      stage.add_observer("imposed times", imposed, true);
                      const std::vector<nn::Microbatch> batches(static_cast<size_t>(run.microbatches),
                                                                random_batch(sizes, world.rank()));
                      comm::barrier(world.groups().world);
                      const double before = clock->now(world.rank()), busy = cpu[rank];
                      step::train_step(*assembly, {batches, 1, 0, false, {}});
                      comm::barrier(world.groups().world);
                      ends[rank] = clock->now(world.rank()) - before;
                      computing[rank] = cpu[rank] - busy;
                      stage.remove_observer("imposed times");
                      if (rank != 0) return;
                      for (ImposedSpan& span : spans) span.start_s -= before, span.end_s -= before;
                    });
  return {*std::max_element(ends.begin(), ends.end()), *std::max_element(computing.begin(), computing.end()), spans};
}

// The share of the shorter of computation and exchanges that the overlap hides.
struct Hidden {
  double serial = 0, overlapped = 0, compute = 0, share = 0;
};
inline Hidden measure_hidden(ImposedRun run) {
  run.overlaps = false;
  const ImposedStep serial = time_step(run);
  run.overlaps = true;
  const ImposedStep overlapped = time_step(run);
  const double exchanges = serial.seconds - serial.compute_s;
  return {serial.seconds, overlapped.seconds, serial.compute_s,
          (serial.seconds - overlapped.seconds) / std::min(exchanges, serial.compute_s)};
}

}  // namespace metroplex::bench

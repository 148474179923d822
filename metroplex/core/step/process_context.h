// The process of one rank: configuration, communicators, device, and position in the pipeline.
#pragma once

#include <memory>
#include <optional>

#include "comm/world.h"
#include "config/config.h"
#include "graph/graph.h"
#include "graph/replay_watch.h"
#include "plan/layout.h"

namespace metroplex::step {

struct ProcessContext {
  config::Config config;                             // resolved
  std::unique_ptr<graph::ReplayWatch> replay_watch;  // only on a GPU of a process; reported to by recorded_world
  // Exists only with train.cuda_graph_impl: the device that captures graphs, and the World whose calls it records.
  std::unique_ptr<graph::GraphDevice> graph_device;
  std::optional<comm::World> recorded_world;
  const comm::World* world = nullptr;
  at::ScalarType dtype = at::kFloat;
  int64_t vocab_size = 0;          // without padding
  plan::StagePlacement placement;  // pipeline rank and chunk of each stage

  const comm::Groups& groups() const { return world->groups(); }
  // The pp rank of the last stage, which computes the loss.
  int last_stage_rank() const { return placement.place_of(placement.stages() - 1).rank; }
  bool last_stage() const { return groups().pp.index() == last_stage_rank(); }
};

}  // namespace metroplex::step

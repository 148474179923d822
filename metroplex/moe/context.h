// What the layers of experts of a rank are made with, beside nn::LayerContext: where experts lie and who shares them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "comm/world.h"
#include "config/config.h"

namespace metroplex::moe {

class LoadMeter;  // load_meter.h

// By layer: the load of every expert in each iteration of a recorded run, at least one.
using RecordedLoads = std::map<int64_t, std::vector<std::vector<int64_t>>>;

struct ExpertContext {
  // The ranks that tokens of a layer may visit: those that differ in etp and ep only. Member i holds part i % etp of
  // the experts [p E / ep, (p + 1) E / ep) with p = i / etp.
  comm::Group experts;
  int etp = 1, ep = 1;  // sizes
  // Of the same ranks, for the hierarchical dispatcher: those of the own node, in the order of `experts`, and those
  // at the same place of all nodes.
  comm::Group node, across;
  comm::Group tp_cp;                                  // whose ranks hold the tokens of one microbatch
  comm::Group tp_dp_cp;                               // and of all microbatches that run at one time
  int data_parallel = 1;                              // microbatches that run at one time
  bool per_token_loss = false;                        // train.calculate_per_token_loss
  std::shared_ptr<LoadMeter> meter;                   // null: nobody wants to know
  std::shared_ptr<const RecordedLoads> forced_loads;  // what this rank's tokens are dealt out by; null: nothing

  int etp_rank() const { return experts.index() % etp; }
  int ep_rank() const { return experts.index() / etp; }
};

// Makes groups: all ranks of the world call it, where the model has experts.
ExpertContext expert_context(const comm::World& world, const config::Config& config);

}  // namespace metroplex::moe

// Construction arguments shared by all layers of a rank. Layers all-gather over `sp`, and reduce by a reduce-scatter
// over `sp` and an all-reduce over `tp_reduce`. One of the two is a group of size one, for which collectives are
// no-ops, so no layer checks whether sequence parallelism is on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "config/parallel.h"
#include "config/peft.h"
#include "config/precision.h"
#include "device/launch_point.h"
#include "nn/rounding_meter.h"
#include "nn/saved.h"
#include "topology/axis.h"

namespace metroplex::nn {

struct InitStreams;  // param_init.h

struct LayerContext {
  comm::Group tp;              // splits the weights of sharded layers and the vocabulary
  comm::Group sp;              // splits the sequence outside attention and MLP: tp or size one
  comm::Group tp_reduce;       // tp without sequence parallelism, else size one
  topology::AxisSet sp_axes;   // the axes of `sp`: gradients computed from local rows are partial sums over them
  comm::Group tp_dp_cp;        // all ranks of a pipeline stage; size one without delayed scales
  comm::Group cp;              // ranks that share one sequence (SequenceShard::rows)
  comm::Group cp_a2a, cp_p2p;  // the levels of cp for a2a+p2p
  // Hybrid context parallelism: groups of 1, 2, 4, ... ranks (SequenceShard::context_ranks).
  std::vector<comm::Group> cp_by_size;
  std::vector<config::CpCommType> cp_comm_types;  // per layer; the last one repeats; empty: p2p
  at::ScalarType dtype = at::kFloat;
  device::Target target;
  uint64_t seed = 1234;
  double init_std = 0.02;
  int64_t num_layers = 1;                         // of the whole model, for Init::scaled_normal
  std::shared_ptr<InitStreams> streams;           // null: initial weights do not depend on the parallel layout
  bool deferred = false;                          // make_param leaves `data` undefined and sets Param::initialize
  config::Peft peft;                              // adapters of linear layers
  config::Precision precision;                    // number formats of products (operand_rounding.h)
  bool keeps_rounded_weights = false;             // weights have a RoundedWeight, which a WeightRounder writes
  std::shared_ptr<RoundingMeter> rounding_meter;  // null: the rounding of operands is not measured
  SavePolicy saving;                              // storage of activations between forward and backward
};

void set_tensor_parallel(LayerContext& context, const comm::Group& tp, bool sequence_parallel);

}  // namespace metroplex::nn

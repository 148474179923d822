// What every layer of a rank is constructed with. Layers all-gather over `sp`, and sum by a reduce-scatter over `sp`
// and an all-reduce over `tp_reduce`. One of these two is a group of one, on which collectives do nothing, so no
// layer asks whether sequence parallelism is on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/group.h"
#include "config/parallel.h"
#include "config/peft.h"
#include "cuda/launch_point.h"
#include "nn/saved.h"
#include "topology/axis.h"

namespace metroplex::nn {

struct InitStreams;  // param_init.h

struct LayerContext {
  comm::Group tp;         // for the sizes of sharded layers and for the vocabulary
  comm::Group sp;         // splits the sequence outside of attention and MLP: tp with sequence parallelism, else one
  comm::Group tp_reduce;  // tp without sequence parallelism, else a group of one
  topology::AxisSet sp_axes;   // the axes of `sp`: weight gradients from a rank's own rows are partial over them
  comm::Group cp;              // whose ranks hold parts of the sequence (Microbatch::rows)
  comm::Group cp_a2a, cp_p2p;  // its levels, for a2a+p2p
  std::vector<comm::Group>
      cp_by_size;  // hybrid context parallelism: of 1, 2, 4, ... ranks (Microbatch::context_ranks)
  std::vector<config::CpCommType> cp_comm_types;  // of each layer, the last one of all behind it; empty: p2p
  at::ScalarType dtype = at::kFloat;
  cuda::Target target;
  uint64_t seed = 1234;
  double init_std = 0.02;
  int64_t num_layers = 1;                // of the whole model, for Init::scaled_normal
  std::shared_ptr<InitStreams> streams;  // null: equal weights in every layout
  bool deferred = false;                 // make_param leaves `data` undefined and sets Param::initialize
  config::Peft peft;                     // adapters of linear layers
  SavePolicy saving;                     // between forward and backward
};

// Sets tp, sp, tp_reduce and sp_axes.
void set_tensor_parallel(LayerContext& context, const comm::Group& tp, bool sequence_parallel);

}  // namespace metroplex::nn

// How parameters are made and get their first values. By default a value is a function of (seed, name, index in the
// unsharded tensor), so every layout starts from the same weights; with InitStreams it is drawn shard by shard from
// generators seeded by Megatron's formulas, and the weights depend on the layout.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "cuda/launch_point.h"
#include "nn/param.h"
#include "nn/saved.h"

namespace metroplex::nn {

// Megatron's seeds (tensor_parallel/random.py, training/initialize.py): base = seed + 100 pp_rank.
struct RngSeeds {
  uint64_t data_parallel = 0;    // base: what is equal on all tensor-parallel ranks
  uint64_t model_parallel = 0;   // base + 2718 + tp_rank
  uint64_t expert_parallel = 0;  // base + 1024 + 100 ep_rank + etp_rank
};
struct RngPlace {
  int tp_rank = 0, pp_rank = 0, ep_rank = 0, etp_rank = 0;
};
RngSeeds rng_seeds(uint64_t seed, const RngPlace& place);

// The generators of one rank, shared by all its stages: parameters are drawn in the order they are made.
struct InitStreams {
  at::Generator replicated, model_parallel;
};
std::shared_ptr<InitStreams> make_init_streams(const RngSeeds& seeds);

// What every layer of a rank is made with.
struct LayerContext {
  comm::Group tp;
  comm::Group cp;  // members hold parts of the sequence (Microbatch::rows)
  bool sequence_parallel = false;
  at::ScalarType dtype = at::kFloat;
  cuda::Target target;
  uint64_t seed = 1234;
  double init_std = 0.02;
  int64_t num_layers = 1;                // of the whole model, for Init::scaled_normal
  std::shared_ptr<InitStreams> streams;  // null: equal weights in every layout
  bool deferred = false;                 // make_param leaves `data` undefined and sets Param::initialize
  SavePolicy saving;                     // between forward and backward
};

struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;  // unsharded
  Shard shard;
  Init init = Init::normal;
  int64_t local_rows = 0;  // along shard.dim, padding included; 0: the sum of the ranges
};

// Describes the local part, and unless the context defers it, allocates it and gives it its first values.
Param make_param(ParamSpec spec, const LayerContext& context);
// Allocates `data` of a deferred parameter and calls `initialize`.
void materialize(Param& param, at::TensorOptions options);

// Sets every element to `value(flat row-major index in the unsharded tensor)`; padding becomes 0. `value` is called
// from several threads.
void fill(Param& param, const std::function<double(int64_t global_index)>& value);

}  // namespace metroplex::nn

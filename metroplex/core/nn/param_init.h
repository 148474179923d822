// Creation and initialization of parameters. By default a value is a function of (seed, name, index in the unsharded
// tensor), so every parallel layout starts from the same weights. With InitStreams, values are sampled parameter by
// parameter from generators seeded by Megatron's formulas; the weights then depend on the layout.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/layer_context.h"
#include "nn/param.h"

namespace metroplex::nn {

// Megatron's seeds (tensor_parallel/random.py, training/initialize.py): base = seed + 100 pp_rank.
struct RngSeeds {
  uint64_t data_parallel = 0;    // base: for values equal on all tensor-parallel ranks
  uint64_t model_parallel = 0;   // base + 2718 + tp_rank
  uint64_t expert_parallel = 0;  // base + 1024 + 100 ep_rank + etp_rank
};
struct RngRanks {
  int tp_rank = 0, pp_rank = 0, ep_rank = 0, etp_rank = 0;
};
RngSeeds rng_seeds(uint64_t seed, const RngRanks& ranks);

// The generators of one rank, shared by all its stages. Parameters are sampled in the order of their creation.
struct InitStreams {
  at::Generator replicated, model_parallel, expert_parallel;
};
std::shared_ptr<InitStreams> make_init_streams(const RngSeeds& seeds);

struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;  // unsharded
  topology::Placement placement;
  Init init = Init::normal;
  std::optional<at::ScalarType> dtype = std::nullopt;  // unset: dtype of the context
};

// Creates a parameter with its local shape. Unless the context defers it, also allocates and initializes the local
// shard.
Param make_param(ParamSpec spec, const LayerContext& context);
// A parameter with one element per head, split over tp.
Param make_head_param(const std::string& name, int64_t heads, Init init, const LayerContext& context);
// Allocates `data` of a deferred parameter and calls `initialize`.
void materialize(Param& param, at::TensorOptions options);

// Sets every element to `value(flat row-major index in the unsharded tensor)`; padding becomes 0. Several threads
// call `value` concurrently.
void fill(Param& param, const std::function<double(int64_t global_index)>& value);

}  // namespace metroplex::nn

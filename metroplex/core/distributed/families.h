// A parameter family: the parameters with the same grid (dense or expert), dtype, frozen flag and gathered form,
// which are reduced, sharded and counted alike. For example, dense parameters, routed experts, and fp32 parameters of
// a half-precision model are three families. Each family has its own data-parallel ranks, layout and buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/world.h"
#include "config/parallel.h"
#include "distributed/grad_buffer.h"
#include "distributed/param_buffer.h"
#include "distributed/slice.h"
#include "nn/param.h"

namespace metroplex::distributed {

struct FamilyKey {
  topology::Grid grid = topology::Grid::dense;
  at::ScalarType dtype = at::kFloat;
  bool frozen = false;    // values are sharded like others; no gradients
  bool as_codes = false;  // gathered as 8-bit codes (precision.fp8_param_gather)
  bool operator==(const FamilyKey&) const = default;
};
FamilyKey family_key(const nn::Param& param);

struct ParamFamily {
  FamilyKey key;
  std::vector<nn::Param*> params;  // forward order; may be empty on a stage
  DataParallel data_parallel;      // ranks with the same parameters and different data
  comm::Group model_parallel;      // ranks with other parameters of the family and the same data-parallel index
  // Only in a training run.
  std::unique_ptr<ParamBuffer> values;
  std::unique_ptr<GradBuffer> gradients;  // null for a frozen family
  // This rank's shards, which it updates unless frozen; without training, all local parameters.
  std::vector<Shard> slices;
};

struct FamilyOptions {
  const config::Parallel* parallel = nullptr;  // resolved
  config::Sharding sharding;
  bool forward_only = false;         // no buffers
  bool gradients_as_params = false;  // gradients in the parameters' dtype; else fp32 (fp64 for fp64)
  at::Device device = at::kCPU;
  // Number of parameters of each unit (Sharding::gathers_units), in order.
  std::vector<size_t> units;
  // Families of other pipeline stages, for a rank that is traced alone.
  std::vector<FamilyKey> other_stages;
};

class ParamFamilies {
 public:
  ParamFamilies() = default;
  // `params` must be in forward order, without stored weights (nn/stored_weight.h). They, `world` and the pointers in
  // `options` must outlive the families. All pipeline stages get the same families in the same order. Collective over
  // the pipeline.
  ParamFamilies(const comm::World& world, const std::vector<nn::Param*>& params, const FamilyOptions& options);

  const std::vector<ParamFamily>& all() const { return families_; }
  const ParamFamily& of(const nn::Param& param) const;
  const DataParallel& data_parallel(topology::Grid grid) const {
    return grid == topology::Grid::dense ? dense_ : expert_;
  }
  std::vector<Shard> slices() const;  // all families, concatenated

  // The functions below are collective over the data-parallel ranks. They call the functions of the same name on each
  // family's buffers.
  void begin_step(int64_t num_microbatches);
  void finish_gradients();
  void updated();
  // Like updated(), for frozen families too. Call after all own values have been written.
  void loaded();
  void finish_gathers();
  // Returns an observer that gathers the parameters of each block of a stage around its computation; null if nothing
  // is gathered.
  std::unique_ptr<nn::StageObserver> make_gather(const std::vector<std::vector<nn::Param*>>& blocks) const;

  int64_t values_bytes() const;     // permanent memory
  int64_t gradients_bytes() const;  // permanent memory
  int64_t gathered_bytes() const;
  int64_t transient_bytes() const;

 private:
  DataParallel dense_, expert_;
  std::vector<ParamFamily> families_;
};

}  // namespace metroplex::distributed

// A parameter family: the parameters of one grid (dense or expert) and one dtype, frozen or not, which are reduced,
// sharded and counted alike. Dense parameters, routed experts, and parameters that stay in fp32 in a half-precision
// model are three families. Each family has its own data-parallel ranks, layout and buffers.
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
  bool frozen = false;  // values, sharded like others, and no gradients
  bool operator==(const FamilyKey&) const = default;
};
FamilyKey family_of(const nn::Param& param);

struct ParamFamily {
  FamilyKey key;
  std::vector<nn::Param*> params;  // forward order; may be none on a stage
  DataParallel data_parallel;      // ranks that hold the same parameters and see other data
  comm::Group model_parallel;      // ranks with other parameters of the family and the same data-parallel index
  // In a training run only.
  std::unique_ptr<ParamBuffer> values;
  std::unique_ptr<GradBuffer> gradients;  // null of a frozen family
  // This rank's share: what it updates, or would if the family were not frozen; without training, all parameters.
  std::vector<Slice> slices;
};

struct FamilyOptions {
  const config::Parallel* parallel = nullptr;  // resolved
  config::Sharding sharding;
  bool forward_only = false;         // no buffers
  bool gradients_as_params = false;  // in the parameters' dtype; else fp32 (fp64 for fp64)
  at::Device device = at::kCPU;
  // The number of parameters of each unit (Sharding::gathers_units), in order.
  std::vector<size_t> units;
};

class ParamFamilies {
 public:
  ParamFamilies() = default;
  // `params` in forward order; they, `world` and what `options` point to outlive the families. All pipeline stages
  // have the same families, in the same order. Collective over the pipeline.
  ParamFamilies(const comm::World& world, const std::vector<nn::Param*>& params, const FamilyOptions& options);

  const std::vector<ParamFamily>& all() const { return families_; }
  const ParamFamily& of(const nn::Param& param) const;
  // The data-parallel ranks of a grid, whatever its families.
  const DataParallel& data_parallel(topology::Grid grid) const {
    return grid == topology::Grid::dense ? dense_ : expert_;
  }
  std::vector<Slice> slices() const;  // of all families, one after the other

  // The functions below are collective over the data-parallel ranks; for each family they call the functions of the
  // same names of its buffers.
  void begin_step(int64_t num_microbatches);
  void finish_gradients();
  void updated();
  // The same after all own values have been written, those of frozen families too.
  void loaded();
  void settle();
  // Gathers the parameters of each block of a stage around its computation; null where nothing is gathered.
  std::unique_ptr<nn::StageObserver> make_gather(const std::vector<std::vector<nn::Param*>>& blocks) const;

  int64_t values_bytes() const;     // kept all the time
  int64_t gradients_bytes() const;  // kept all the time
  int64_t gathered_bytes() const;
  int64_t transient_bytes() const;

 private:
  DataParallel dense_, expert_;
  std::vector<ParamFamily> families_;
};

}  // namespace metroplex::distributed

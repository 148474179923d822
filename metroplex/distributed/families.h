// Parameters that are reduced, shared and counted alike are a family: those of one grid and one number format. The
// dense ones, routed experts, whose copies lie on other ranks, and what stays in fp32 inside a model in half
// precision are three. Every family has its own data-parallel ranks, layout and buffers; together they make a step.
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
  bool clones = false;
  bool operator==(const FamilyKey&) const = default;
};
FamilyKey family_of(const nn::Param& param);

struct ParamFamily {
  FamilyKey key;
  std::vector<nn::Param*> params;  // forward order; may be none on a stage
  DataParallel data_parallel;      // who holds them too and sees other data
  comm::Group model_parallel;      // who holds other parameters of the family, at the same data-parallel place
  // In a training run.
  std::unique_ptr<ParamBuffer> values;
  std::unique_ptr<GradBuffer> gradients;
  // What this rank updates, or all it has where nothing is trained; of clones nothing.
  std::vector<Slice> slices;
};

struct FamilyOptions {
  const config::Parallel* parallel = nullptr;  // resolved
  config::Sharding sharding;
  bool forward_only = false;         // no buffers
  bool gradients_as_params = false;  // in the parameters' format; else fp32 (fp64 for fp64)
  at::Device device = at::kCPU;
  // Of the parameters those that a unit brings (Sharding::gathers_units), in order.
  std::vector<size_t> units;
};

class ParamFamilies {
 public:
  ParamFamilies() = default;
  // `params` in forward order; they outlive the families, and so do `world` and what `options` point to. The same
  // families, in the same order, on all pipeline stages. Collective over the pipeline.
  ParamFamilies(const comm::World& world, const std::vector<nn::Param*>& params, const FamilyOptions& options);

  const std::vector<ParamFamily>& all() const { return families_; }
  const ParamFamily& of(const nn::Param& param) const;
  // The ranks that hold the same of a grid's tensors, parameters or not.
  const DataParallel& data_parallel(topology::Grid grid) const {
    return grid == topology::Grid::dense ? dense_ : expert_;
  }
  std::vector<Slice> slices() const;  // of all families, one after the other

  // All below are collective over the data-parallel ranks, and do family by family what the buffers' functions of the
  // same name do.
  void begin_step(int64_t num_microbatches);
  void finish_gradients();
  void updated();
  void settle();
  // Gathers of what the blocks of a stage read, a list of parameters each; null where nothing is gathered.
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

// This rank's share of the tensors of a training state. Tensors are described first, then decoded and copied to the
// host one at a time during writing. A save therefore needs extra memory for one tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/save.h"
#include "checkpoint/tensor_source.h"
#include "files/dtype.h"
#include "nn/param.h"
#include "topology/placement.h"
#include "step/assemble.h"

namespace metroplex::step {

std::vector<optim::State> weight_states(const RankModel& model);
// Non-trainable state, of kind "buffer".
std::vector<optim::State> buffer_states(const RankModel& model);
// Weights, main parameters and moments. A forward-only assembly has weights only.
std::vector<optim::State> training_states(const RankModel& model, const Optimization& optimization);

// Size of the host buffer through which a save copies from the device.
inline constexpr int64_t kHostBufferBytes = int64_t{8} << 20;

// The regions that this rank writes into a checkpoint; only weights with checkpoint.no_save_optim. They reference the
// assembly's tensors. Replicas share the writing: of all bytes in order, replica r of R writes the range r / R to (r
// + 1) / R, rounded to whole elements.
std::vector<checkpoint::LocalPiece> regions_to_write(const ProcessContext& process, const RankModel& model,
                                                     const Optimization& optimization);

// Host memory in bytes that a background save holds on this rank (run/saving.h), for one piece and for all; 0 without
// checkpoint.async_save.
int64_t copy_bytes(const checkpoint::LocalPiece& piece);
int64_t copy_bytes(const ProcessContext& process, const RankModel& model, const Optimization& optimization);

// Fills `values` (state.values()) from the source's tensor of `kind`. Converts the dtype.
void fill(checkpoint::TensorSource& source, const optim::State& state, const at::Tensor& values,
          const std::string& kind);

// Converts a range of a parameter's local tensor into the global regions that checkpoints store.

// Elements [begin, end) of the flattened local tensor; padding is excluded.
std::vector<topology::BoxRange> box_ranges(const nn::NamedTensor& tensor, int64_t begin, int64_t end);

files::Dtype file_dtype(at::ScalarType dtype);
// Throws base::Error for a dtype that no parameter, optimizer state or buffer has.
at::ScalarType to_scalar_type(files::Dtype dtype);

}  // namespace metroplex::step

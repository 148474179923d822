// This rank's share of the tensors of a training state. They are described first, and decoded and copied to the host
// one at a time while they are written, so that a save needs extra memory for one tensor only.
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
#include "train/assemble.h"

namespace metroplex::train {

std::vector<optim::State> weight_states(const Assembly& assembly);
// State without gradient, of kind "buffer".
std::vector<optim::State> buffer_states(const Assembly& assembly);
// With main parameters and moments; of a forward-only assembly there are none.
std::vector<optim::State> training_states(const Assembly& assembly);

// The size of the host buffer through which a save copies from the device.
inline constexpr int64_t kHostBufferBytes = int64_t{8} << 20;

// What this rank writes into a checkpoint, with checkpoint.no_save_optim of the weights alone; the pieces refer to
// what the assembly holds. Ranks that hold the same share the writing: of all their bytes, in order, replica r of R
// writes from r / R to (r + 1) / R, cut at whole elements.
std::vector<checkpoint::LocalPiece> pieces_to_write(Assembly& assembly);

// Fills `values` (state.values()) with what the source has under `kind`, whatever dtype it was written in.
void fill(checkpoint::TensorSource& source, const optim::State& state, const at::Tensor& values,
          const std::string& kind);

// From what a rank holds of a parameter, a range of its local tensor, to boxes of the whole tensor: the language of
// checkpoints.

// Elements [begin, end) of the flat local tensor; padding is left out.
std::vector<topology::BoxRange> box_ranges(const nn::NamedTensor& tensor, int64_t begin, int64_t end);

files::Dtype file_dtype(at::ScalarType dtype);
// Throws base::Error for a type that no parameter, optimizer state or buffer has.
at::ScalarType scalar_type_of(files::Dtype dtype);

}  // namespace metroplex::train

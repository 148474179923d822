// The tensors of a training state as far as this rank holds them, one at a time: described first, decoded and brought
// to the host when they are written, so that a save needs room for one tensor and not for all.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "train/assemble.h"

namespace metroplex::train {

// One tensor (a weight, a moment, a buffer): the elements [begin, end) of the local one.
struct Held {
  const nn::NamedTensor* param;
  std::string kind;  // as in docs/checkpoint_format.md
  int64_t begin, end;
  at::ScalarType dtype;
  std::function<at::Tensor()> values;  // flat; may be a decoded copy
};

std::vector<Held> held_weights(const Assembly& assembly);
// State without gradient, of kind "buffer".
std::vector<Held> held_buffers(const Assembly& assembly);
// With main parameters and moments; of a forward-only assembly there are none.
std::vector<Held> held_state(const Assembly& assembly);

// What a save takes from the device at a time, at most.
inline constexpr int64_t kHostBufferBytes = int64_t{8} << 20;

// Appends the pieces of `held`, which refer to what the assembly holds and to nothing else.
void add_pieces(const Held& held, std::vector<checkpoint::LocalPiece>& pieces);

// Fills `values` (held.values()) with what the checkpoint has under `kind`, whatever dtype it was written in.
void fill(checkpoint::Reader& reader, const Held& held, const at::Tensor& values, const std::string& kind);

}  // namespace metroplex::train

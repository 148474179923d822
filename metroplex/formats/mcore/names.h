// Names and shapes of Megatron's model tensors, in terms of ours. Rows inside a tensor have the same order in both:
// linear_qkv per query group, gate before up in linear_fc1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "mcore/contents.h"

namespace metroplex::mcore {

// The region [offset, offset + size) of one of our tensors. Its element i (from 0) is element index + i' of the
// stored tensor: i' is i without its first `dropped` dimensions, which have size 1 in the region; `index` precedes
// i'.
struct Part {
  std::string stored;
  Dims index;
  Dims offset, size;
  size_t dropped = 0;
};

struct MappedTensor {
  std::string name;  // ours
  Dims shape;
  std::string kind = "weight";  // or "buffer"
  // Formats and versions of Megatron divide a tensor differently. The parts of each alternative cover it.
  std::vector<std::vector<Part>> alternatives;
};

// In the order of the model. `model` must be resolved.
std::vector<MappedTensor> map_tensors(const config::Model& model);

}  // namespace metroplex::mcore

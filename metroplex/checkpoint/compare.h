// Compares two checkpoints tensor by tensor, whatever layouts wrote them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/load.h"

namespace metroplex::checkpoint {

struct TensorDifference {
  std::string name, kind;
  std::string problem = "";  // "only in the first", "shape [2] and [3]": then the values were not compared
  int64_t elements = 0;
  int64_t different_elements = 0;  // with different values; NaN equals NaN, 0 equals -0
  double max_absolute = 0;         // infinite where only one side is NaN
  double norm = 0;                 // of the difference, l2; likewise
  // Absent: not on that side.
  std::optional<files::TensorForm> first = std::nullopt, second = std::nullopt;
};

// One entry for each tensor of either, by name and kind. Reads both entirely, about 2 * 64 MiB at a time. Throws
// base::Error for a damaged piece, and for dtypes that files::element_as_double cannot read when their bytes differ.
std::vector<TensorDifference> compare(TensorSource& first, TensorSource& second);

}  // namespace metroplex::checkpoint

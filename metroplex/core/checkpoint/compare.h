// Compares two checkpoints tensor by tensor, independent of the layouts that wrote them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/load.h"

namespace metroplex::checkpoint {

struct TensorDifference {
  std::string name, kind;
  std::string problem = "";  // "only in the first", "shape [2] and [3]": values were not compared
  int64_t elements = 0;
  int64_t different_elements = 0;  // NaN equals NaN, 0 equals -0
  double max_absolute = 0;         // infinite if only one side is NaN
  double norm = 0;                 // l2 norm of the difference; infinite likewise
  // nullopt: not in that checkpoint.
  std::optional<files::TensorForm> first = std::nullopt, second = std::nullopt;
};

// Returns one entry per tensor of either source, by name and kind. Reads both sources completely, about 2 * 64 MiB at
// a time. Throws base::Error for a damaged shard. Also throws if bytes differ in a dtype that
// files::element_as_double cannot read.
std::vector<TensorDifference> compare(TensorSource& first, TensorSource& second);

}  // namespace metroplex::checkpoint

// A tensor of the model under its global name, of which this rank holds a part. What has a name and a placement can
// be saved and loaded into any layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "topology/placement.h"

namespace metroplex::nn {

struct NamedTensor {
  std::string name;                   // global: layer numbers count over the whole model
  std::vector<int64_t> global_shape;  // unsharded, vocabulary unpadded
  topology::Placement placement;
  std::vector<int64_t> local_shape;  // of the local part, also while `data` is away (ZeRO-3)
  at::Tensor data;                   // the local part; undefined between uses when the data-parallel ranks share it
  bool owner = true;  // false: another holder of placement.shared counts and saves it (train/sharing.h)

  int64_t numel() const;          // of the local part
  int64_t padding_numel() const;  // of it: rows of a cut dim in no range
  bool cut() const { return !placement.cuts.empty(); }
  // Of all ranks that hold the same elements at one data-parallel place, exactly one says true.
  bool counts(const topology::Coordinates& at) const { return owner && topology::counts(placement, at); }
};

// State of the model without gradient (expert bias, counters, scales), equal on all data-parallel ranks. It is saved
// with the weights, and it changes as they do: by the steps that update, not by those that are skipped.
struct Buffer : NamedTensor {
  at::Tensor pending;  // what the forwards of this step gathered; zero when a step begins
  // Writes `data` from `pending` when the step updates; all ranks that hold the buffer call it, in the same order.
  std::function<void(Buffer& buffer)> apply;
};

}  // namespace metroplex::nn

// A tensor of the model under its global name, of which this rank holds a part. Name and placement are what it takes
// to save it and to load it into any layout.
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
  std::vector<int64_t> local_shape;  // of the local part, also while `data` is undefined (ZeRO-3)
  at::Tensor data;                   // the local part; with ZeRO-3 undefined between uses
  bool owner = true;  // false: another holder of placement.shared counts and saves it (train/sharing.h)

  int64_t numel() const;          // of the local part
  int64_t padding_numel() const;  // elements of the local part that are padding: rows of a cut dim in no range
  bool cut() const { return !placement.cuts.empty(); }
  // True on exactly one of the ranks that hold the same elements, for each data-parallel replica: who counts them in
  // norms and saves them.
  bool counts(const topology::Coordinates& at) const { return owner && topology::counts(placement, at); }
};

// State of the model without gradient (expert bias, counters, scales), equal on all data-parallel ranks. It is saved
// with the weights and, like them, changes only in steps that update, not in skipped ones.
struct Buffer : NamedTensor {
  bool frozen = false;  // never applied
  at::Tensor pending;   // accumulated by the forwards of this step; zeroed when a step begins
  // Writes `data` from `pending` when the step updates; all ranks that hold the buffer call it, in the same order.
  std::function<void(Buffer& buffer)> apply;
};

}  // namespace metroplex::nn

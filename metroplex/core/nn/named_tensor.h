// A tensor of the model under its global name, of which this rank holds a shard. Name and placement suffice to save
// it and to load it into any parallel layout.
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
  std::vector<int64_t> local_shape;  // of the local shard, also while `data` is undefined (ZeRO-3)
  at::Tensor data;                   // the local shard; with ZeRO-3 undefined between uses
  bool owner = true;                 // false: another holder of placement.shared counts and saves it (step/sharing.h)

  int64_t numel() const;          // of the local shard
  int64_t padding_numel() const;  // of the local shard: rows of a sharded dim in no range
  bool is_sharded() const { return !placement.cuts.empty(); }
  // True on exactly one of the ranks that hold the same elements, for each data-parallel replica. That rank counts
  // the elements in norms and saves them.
  bool counts(const topology::Coordinates& at) const { return owner && topology::counts(placement, at); }
};

// Model state without gradient (expert bias, counters, scales), equal on all data-parallel ranks. It is saved with
// the weights and, like them, changes only in steps that update, not in skipped ones.
struct Buffer : NamedTensor {
  bool frozen = false;  // apply() is never called
  // A statistic of the run: it is updated although its layer is frozen, and starts anew if a checkpoint lacks it.
  bool is_statistic = false;
  at::Tensor pending;  // accumulated by the forwards of this step; zeroed when a step begins
  // Updates `data` from `pending` in steps that update. All ranks that hold the buffer call it, in the same order.
  std::function<void(Buffer& buffer)> apply;
};

}  // namespace metroplex::nn

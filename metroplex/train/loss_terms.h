// Indices for the loss terms of all ranks: the ranks agree on the names once, so that a step all-reduces numbers
// only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "cuda/launch_point.h"
#include "nn/segment.h"

namespace metroplex::train {

// What the segments of this rank reported in one step, as kernels read it.
struct ReportedTerms {
  at::Tensor sums;   // [microbatches * each] double, in order of microbatches
  at::Tensor terms;  // [each] int64: the number of the term
};

class LossTermNames {
 public:
  // Collective over `world` at its first call. `terms` has one list a microbatch; later ones name no other terms.
  void agree(const std::vector<nn::LossTerms>& terms, const comm::Group& world);
  const std::vector<std::string>& names() const { return names_; }  // sorted
  int64_t size() const { return static_cast<int64_t>(names_.size()); }
  // Undefined tensors where nothing was reported. What a rank reports, it reports of every microbatch in the same
  // order: so the numbers are written once, by a step that runs as it is, whatever the number of microbatches.
  ReportedTerms of(const std::vector<nn::LossTerms>& terms, const cuda::Target& target);

 private:
  void write_numbers(const cuda::Target& target);

  bool agreed_ = false;
  std::vector<std::string> names_;
  // Of one microbatch of this rank, once it has reported.
  std::vector<std::string> reported_;
  at::Tensor on_device_;
};

}  // namespace metroplex::train

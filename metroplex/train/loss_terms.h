// Loss terms of all ranks under numbers: their names are agreed on once, so that a step adds them up as numbers.
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
  at::Tensor sums;    // [reported] double
  at::Tensor places;  // [reported, 2] int64: number of the term, microbatch; in order of microbatches
};

class LossTermNames {
 public:
  // Collective over `world` at its first call. `terms` has one list a microbatch; later ones name no other terms.
  void agree(const std::vector<nn::LossTerms>& terms, const comm::Group& world);
  const std::vector<std::string>& names() const { return names_; }  // sorted
  int64_t size() const { return static_cast<int64_t>(names_.size()); }
  // Undefined tensors where nothing was reported.
  ReportedTerms of(const std::vector<nn::LossTerms>& terms, const cuda::Target& target);

 private:
  bool agreed_ = false;
  std::vector<std::string> names_;
  std::vector<int64_t> places_;  // of the last step
  at::Tensor on_device_;
};

}  // namespace metroplex::train

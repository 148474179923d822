// Maps loss-term names to indices. All ranks agree on the names once, so that a step all-reduces only numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "device/launch_point.h"
#include "nn/segment.h"

namespace metroplex::step {

// The loss terms of this rank in one step, as kernel input. each: number of terms per microbatch.
struct ReportedTerms {
  at::Tensor sums;   // [microbatches * each] double, in microbatch order
  at::Tensor terms;  // [each] int64: index of the term
};

class LossTermNames {
 public:
  // Collective over `world` in the first call. `terms` has one list per microbatch. Later calls must not add names.
  void agree(const std::vector<nn::LossTerms>& terms, const comm::Group& world);
  const std::vector<std::string>& names() const { return names_; }  // sorted
  int64_t size() const { return static_cast<int64_t>(names_.size()); }
  // Returns undefined tensors if this rank reports no terms. Every microbatch of a rank reports the same terms in the
  // same order. Indices are therefore written once, in an eager step, and do not depend on the number of
  // microbatches.
  ReportedTerms of(const std::vector<nn::LossTerms>& terms, const device::Target& target);

 private:
  void write_numbers(const device::Target& target);

  bool agreed_ = false;
  std::vector<std::string> names_;
  // Terms of one microbatch of this rank; set by the first report.
  std::vector<std::string> reported_;
  at::Tensor on_device_;
};

}  // namespace metroplex::step

// Weights of clones on their way from the homes of their experts. Their gradients take the same way back, and are
// added to the main_grad of the home by ascending slot.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/collectives.h"
#include "comm/group.h"
#include "moe/experts.h"

namespace metroplex::moe {

class ClonesUnderWay {
 public:
  ClonesUnderWay() = default;
  // owners [members * slots] int32: of each slot of each member of `group` the expert, -1: none. `home` and `group`
  // outlive it and the gradients of what comes.
  ClonesUnderWay(const HomeWeights& home, const at::Tensor& owners, int64_t slots, const comm::Group& group);
  bool defined() const { return group_ != nullptr; }
  // Once. What is in a slot without owner is unspecified. Differentiable (nn::keep_gradient_type).
  CloneWeights finish();

 private:
  struct One {
    nn::Param* param;
    at::Tensor slots;
    comm::Handle handle;
  };
  at::Tensor finish(One& one) const;

  One fc1_{}, fc2_{}, bias1_{}, bias2_{};
  at::Tensor owners_;
  const comm::Group* group_ = nullptr;
};

// The weights alone, without gradient.
at::Tensor fetched_clones(const nn::Param& home, const at::Tensor& owners, int64_t slots, const comm::Group& group);

}  // namespace metroplex::moe

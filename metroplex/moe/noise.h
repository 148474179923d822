// Random numbers for rows of an activation: functions of the seed, the layer, the site, the step, the sample, the row
// of the whole sequence and the column, like dropout (nn/dropout.h). So they are equal in every layout, and in
// recompute.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/group.h"
#include "cuda/kernels/route.h"
#include "nn/dropout.h"
#include "nn/layer_context.h"

namespace metroplex::moe {

using cuda::kernels::Noise;

class RowNoise {
 public:
  RowNoise(int64_t layer, nn::RandomSite site, const nn::LayerContext& context);

  // Where x [s (/tp), b, width] lies. The batch is one of training, and its counters are there.
  nn::DropoutMask rows(const at::Tensor& x_sbh, const nn::Microbatch& batch) const;
  // [s b, width] of `type`, fp32 or fp64.
  at::Tensor draw(Noise noise, const nn::DropoutMask& rows, at::ScalarType type) const;

 private:
  nn::DropoutKey key_;
  comm::Group sp_;
};

}  // namespace metroplex::moe

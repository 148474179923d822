// Random numbers for rows of an activation, as functions of seed, layer, site, step, sample, row in the whole
// sequence and column, like dropout (nn/dropout.h). They are equal in every parallel layout and in recompute.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/group.h"
#include "kernels/random_rows.h"
#include "nn/dropout.h"
#include "nn/layer_context.h"

namespace metroplex::moe {

using kernels::Noise;

class RowNoise {
 public:
  RowNoise(int64_t layer, nn::RandomSite site, const nn::LayerContext& context);

  // Location of x [s (/tp), b, width] in the whole sequence. The batch must be a training batch with counters.
  nn::DropoutMask rows(const at::Tensor& x_sbh, const nn::Microbatch& batch) const;
  // Returns [s b, width] of `type`, fp32 or fp64.
  at::Tensor draw(Noise noise, const nn::DropoutMask& rows, at::ScalarType type) const;

 private:
  nn::DropoutKey key_;
  comm::Group sp_;
};

}  // namespace metroplex::moe

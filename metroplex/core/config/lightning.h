// The decays of lightning attention (MiniMax-01, arXiv:2501.08313): each token multiplies the state of a head by
// exp(-slope). The slopes are those of ALiBi, smaller in later layers.
#pragma once

#include <cmath>
#include <cstdint>

#include "config/model.h"

namespace metroplex::config {

struct LightningDecay {
  double base, factor;  // of all heads

  // `layer`: global layer number.
  LightningDecay(const Model& model, int64_t layer)
      : base(std::exp2(-8.0 / static_cast<double>(model.num_attention_heads))),
        factor(1 - static_cast<double>(layer) / (static_cast<double>(model.num_layers - 1) + 1e-5) + 1e-5) {}
  double slope(int64_t head) const { return std::pow(base, static_cast<double>(head + 1)) * factor; }
};

}  // namespace metroplex::config

#include "nn/rounding_meter.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "kernels/rounding_errors.h"

namespace metroplex::nn {

int64_t RoundingMeter::add(const std::string& module) {
  const auto known =
      std::find_if(layers_.begin(), layers_.end(), [&](const Layer& layer) { return layer.module == module; });
  if (known != layers_.end()) return known - layers_.begin();
  layers_.push_back({stage_, module});
  return static_cast<int64_t>(layers_.size()) - 1;
}

void RoundingMeter::start() {
  measures_ = true;
  if (!figures_.defined())
    figures_ = at::zeros({static_cast<int64_t>(layers_.size()), 3, kernels::kRoundingFigures},
                         at::TensorOptions().dtype(at::kDouble).device(target_.memory()));
}

void RoundingMeter::clear() {
  if (measures_) figures_.zero_();
}

}  // namespace metroplex::nn

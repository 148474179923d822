// Figures of the rounding of each layer's operands in one step (kernels/rounding_errors.h), of this rank's stages.
// Layers add to them on the device, but only between start() and stop(); other steps cost nothing. Launches of a
// captured step would stay in its graph, so measured steps run eagerly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "device/launch_point.h"

namespace metroplex::nn {

class RoundingMeter {
 public:
  struct Layer {
    int64_t stage;  // in model order
    std::string module;
  };

  explicit RoundingMeter(const device::Target& target) : target_(target) {}
  // Layers that are added later belong to this stage.
  void begin_stage(int64_t stage) { stage_ = stage; }
  // Returns the row of the layer's figures; the same row for the same module.
  int64_t add(const std::string& module);
  // In forward order within a stage.
  const std::vector<Layer>& layers() const { return layers_; }

  void start();
  void stop() { measures_ = false; }
  bool measures() const { return measures_; }
  // Zeroes the figures of a measured step.
  void clear();
  // [layers, 3 operands, kernels::kRoundingFigures] double; undefined before the first start().
  const at::Tensor& figures() const { return figures_; }

 private:
  device::Target target_;
  std::vector<Layer> layers_;
  int64_t stage_ = 0;
  bool measures_ = false;
  at::Tensor figures_;
};

}  // namespace metroplex::nn

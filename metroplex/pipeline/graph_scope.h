// Which segments of a stage are captured: those that train.cuda_graph_modules names, or all segments of every layer.
#pragma once

#include "config/config.h"
#include "nn/island.h"
#include "nn/segment.h"

namespace metroplex::pipeline {

// By default nothing.
struct GraphScope {
  config::CudaGraphModules modules;
  bool layers = false;  // every segment of the blocks that count as a layer, instead of modules

  bool holds(const nn::Block& block, const nn::Segment& segment) const;
};

GraphScope graph_scope(const config::Train& train);

// Throws base::Error("cuda graph", ...) with the segment's or the parameter's name, the reason and the way out, where
// the island cannot be a graph. After nn::count_uses.
void check_capturable(const nn::Island& island);

}  // namespace metroplex::pipeline

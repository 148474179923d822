// A segment is a part of a block with a border on which something may hang: it takes and returns named values. A
// block, such as a transformer layer, is a list of segments; a stage is a list of blocks. How many neighbouring
// segments run as one is not theirs to know (island.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/cuda_graph.h"
#include "nn/microbatch.h"
#include "nn/param.h"
#include "nn/value.h"

namespace metroplex::nn {

// An auxiliary loss of one microbatch: the scalar sum over its tokens, as the loss of the head is.
struct LossTerm {
  std::string name;
  at::Tensor sum;
};
using LossTerms = std::vector<LossTerm>;

// What a forward is handed beside its values.
struct SegmentContext {
  const Microbatch& batch;
  bool is_recompute = false;  // backward repeats this forward: what is counted once has been counted
  LossTerms terms;            // appended to by segments; backward enters each with the microbatch's factor
};

// What must be known of a segment before it runs, so that it can be captured or run beside others.
struct SegmentTraits {
  bool needs_host = false;                             // the host reads results of the device
  bool static_shapes = true;                           // those of the outputs follow from those of the inputs
  std::optional<config::CudaGraphModule> module = {};  // the part of a layer that it is, for what names such parts
};

class Segment {
 public:
  virtual ~Segment() = default;
  virtual const std::string& name() const = 0;
  // Empty for a first segment, which reads the microbatch alone. A tensor that leaves must not be held by its own way
  // back, so that dropping its handle frees it.
  virtual Values forward(const Values& in, SegmentContext& context) = 0;
  // Appends pointers that stay valid for the segment's life, in forward order; all that the segment reads, so that a
  // shared one is told by several segments.
  virtual void collect_params(std::vector<Param*>& params) = 0;
  // Appends its state without gradient, likewise.
  virtual void collect_buffers(std::vector<Buffer*>& /*buffers*/) {}
  virtual SegmentTraits traits() const { return {}; }
};

struct Block {
  std::string name;
  bool is_layer = false;  // one of the model's num_layers, which is what full recompute counts
  std::vector<std::unique_ptr<Segment>> segments;
};
using Blocks = std::vector<Block>;

// All parameters that the segments list, each once, in the order in which they are first told.
std::vector<Param*> params_of(const Block& block);
std::vector<Param*> params_of(const Blocks& blocks);
// Sets Param::uses_per_microbatch: the number of segments that list the parameter.
void count_uses(const std::vector<const Blocks*>& stages);

}  // namespace metroplex::nn

#include "pipeline/stage_graphs.h"

#include "base/error.h"

namespace metroplex::pipeline {

bool GraphScope::holds(const nn::Block& block, const nn::Segment& segment) const {
  using enum config::CudaGraphModule;
  if (layers) return block.is_layer;
  const auto module = segment.traits().module;
  if (!module) return false;
  const bool is_expert_part = *module == moe_router || *module == moe_preprocess;
  return modules.has(*module) || (is_expert_part && modules.has(moe));
}

GraphScope graph_scope(const config::Train& train) {
  if (!train.captures_parts()) return {};
  return {train.captured_modules(), train.cuda_graph_modules.empty()};
}

static void check_capture(const nn::Region& region, bool holds, const std::string& name, const char* reason) {
  MPX_CHECK(holds, "cuda graph", name, " of ", region.segments.front()->name(), " cannot be captured: ", reason,
            "; leave it out of train.cuda_graph_modules, or set train.cuda_graph_impl: none");
}

void check_capturable(const nn::Region& region) {
  for (const nn::Segment* segment : region.segments) {
    const nn::SegmentTraits traits = segment->traits();
    check_capture(region, !traits.needs_host, "segment " + segment->name(), "the host reads results of the device");
    check_capture(region, traits.static_shapes, "segment " + segment->name(),
                  "the shapes of its results follow from values of the device");
  }
  for (const nn::Region::Uses& uses : region.params) {
    check_capture(region, uses.param->scalar_type() != at::kHalf || uses.times == uses.param->uses_per_microbatch,
                  "parameter " + uses.param->name,
                  "its fp16 gradients of one microbatch are also summed in segments that are not captured with it");
  }
}

}  // namespace metroplex::pipeline

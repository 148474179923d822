// A model with an extra segment that applies a planted fault to the hidden states.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "step/assemble.h"

namespace metroplex::test {

// Maps hidden states to hidden states in every forward.
using Fault = std::function<at::Tensor(const at::Tensor& x)>;
using FaultOfValues = std::function<nn::Values(const nn::Values& in)>;

class PlantedSegment final : public nn::Segment {
 public:
  explicit PlantedSegment(FaultOfValues fault) : fault_(std::move(fault)) {}
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>&) override {}
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    nn::Values made;
    for (const auto& [name, value] : in) {
      nn::Value copy = value;
      copy.compute(context.batch);
      made.add(name, copy.tensor());
    }
    return fault_(made);
  }

 private:
  std::string name_ = "planted";
  FaultOfValues fault_;
};

// `in` with the value of `name` replaced by `x`.
inline nn::Values replaced(const nn::Values& in, std::string_view name, const at::Tensor& x) {
  nn::Values out;
  out.host = in.host;
  for (const auto& [other, value] : in) out.add(other, other == name ? x : value.tensor());
  return out;
}

// Inserts the fault after the first segment of each stage whose name ends with `suffix`. The context has the groups
// that a fault may use.
inline step::StageBuilder with_fault_after(std::string suffix,
                                           std::function<FaultOfValues(const models::ModelContext&)> compute) {
  return [=](const models::ModelContext& context, const models::StageSpec& slice) {
    nn::Blocks blocks = models::build_stage(context, slice);
    for (nn::Block& block : blocks) {
      if (!block.is_layer) continue;
      for (auto segment = block.segments.begin(); segment != block.segments.end(); ++segment) {
        if (!(*segment)->name().ends_with(suffix)) continue;
        block.segments.insert(std::next(segment), std::make_unique<PlantedSegment>(compute(context)));
        return blocks;
      }
    }
    return blocks;
  };
}

// At the end of the first layer of each stage.
inline step::StageBuilder with_fault(std::function<Fault(const models::ModelContext&)> compute) {
  return [compute = std::move(compute)](const models::ModelContext& context, const models::StageSpec& slice) {
    nn::Blocks blocks = models::build_stage(context, slice);
    const auto layer =
        std::find_if(blocks.begin(), blocks.end(), [](const nn::Block& block) { return block.is_layer; });
    if (layer == blocks.end()) return blocks;
    layer->segments.push_back(std::make_unique<PlantedSegment>([fault = compute(context)](const nn::Values& in) {
      return replaced(in, nn::kHiddenStates, fault(in.tensor(nn::kHiddenStates)));
    }));
    return blocks;
  };
}
inline step::StageBuilder with_fault(Fault fault) {
  return with_fault([fault = std::move(fault)](const models::ModelContext&) { return fault; });
}

}  // namespace metroplex::test

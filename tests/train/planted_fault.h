// A model with a segment in it that does to the hidden states whatever a test plants.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "train/assemble.h"

namespace metroplex::test {

// Hidden states in, hidden states out; in every forward.
using Fault = std::function<at::Tensor(const at::Tensor& x)>;

class PlantedSegment final : public nn::Segment {
 public:
  explicit PlantedSegment(Fault fault) : fault_(std::move(fault)) {}
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>&) override {}
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    nn::Values out;
    for (const auto& [name, value] : in) {
      nn::Value made = value;
      made.make(context.batch);
      out.add(name, name == nn::kHiddenStates ? fault_(made.tensor()) : made.tensor());
    }
    return out;
  }

 private:
  std::string name_ = "planted";
  Fault fault_;
};

// At the end of the first layer of each stage. Its context says on which groups a fault may speak.
inline train::StageBuilder with_fault(std::function<Fault(const models::ModelContext&)> make) {
  return [make = std::move(make)](const models::ModelContext& context, const models::StageSlice& slice) {
    nn::Blocks blocks = models::build_stage(context, slice);
    for (nn::Block& block : blocks) {
      if (!block.is_layer) continue;
      block.segments.push_back(std::make_unique<PlantedSegment>(make(context)));
      break;
    }
    return blocks;
  };
}
inline train::StageBuilder with_fault(Fault fault) {
  return with_fault([fault = std::move(fault)](const models::ModelContext&) { return fault; });
}

}  // namespace metroplex::test

// The rounding of every layer's operands in a measured step, over all ranks (nn/rounding_meter.h).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "kernels/rounding_errors.h"
#include "step/process_context.h"
#include "step/rank_model.h"

namespace metroplex::step {

// Operands in the order of nn::Operand. Every element of an operand is counted equally often, once or more: on each
// rank that holds it and in each microbatch. Shares and relative errors are therefore those of the whole tensors.
struct LayerRounding {
  std::string module;
  std::array<kernels::RoundingFigures, 3> operands;
};
inline constexpr std::array<const char*, 3> kOperandNames = {"input", "weight", "gradient"};

// Returns the layers in model order, the same on all ranks. Requires model.rounding_meter. Waits for the device.
// Collective over the world.
std::vector<LayerRounding> reduce_rounding(const ProcessContext& process, const RankModel& model);

// Returns "the weight of LAYER (precision.fp8_recipe = RECIPE)" for the first operand in the order of a step that has
// an element that is not finite; empty: none.
std::string first_nonfinite_operand(const config::Precision& precision, const std::vector<LayerRounding>& layers);

}  // namespace metroplex::step

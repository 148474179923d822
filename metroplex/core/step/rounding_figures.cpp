#include "step/rounding_figures.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "comm/collectives.h"
#include "device/launch_point.h"
#include "nn/operand_rounding.h"

namespace metroplex::step {
namespace {

using kernels::kRoundingFigures;
using kernels::kRoundingSums;

// Returns the modules of all ranks in model order. A module that several stages share is listed once.
std::vector<std::string> all_modules(const nn::RoundingMeter& meter, const comm::Group& world) {
  std::string mine;
  int64_t row = 0;
  for (const nn::RoundingMeter::Layer& layer : meter.layers())
    mine += base::concat(layer.stage, ' ', row++, ' ', layer.module, '\n');
  std::set<std::tuple<int64_t, int64_t, std::string>> ordered;
  for (const std::string& text : comm::all_gather_strings(mine, world)) {
    std::istringstream lines(text);
    int64_t stage = 0;
    for (std::string module; lines >> stage >> row >> module;) ordered.emplace(stage, row, module);
  }
  std::vector<std::string> modules;
  for (const auto& [stage, place, module] : ordered) {
    if (std::find(modules.begin(), modules.end(), module) == modules.end()) modules.push_back(module);
  }
  return modules;
}

}  // namespace

std::vector<LayerRounding> reduce_rounding(const ProcessContext& process, const RankModel& model) {
  const nn::RoundingMeter& meter = *model.rounding_meter;
  const comm::Group& world = process.groups().world;
  const std::vector<std::string> modules = all_modules(meter, world);
  const at::Tensor sums =
      at::zeros({static_cast<int64_t>(modules.size()), 3, kRoundingFigures}, meter.figures().options());
  for (size_t row = 0; row < meter.layers().size(); ++row) {
    const auto place = std::find(modules.begin(), modules.end(), meter.layers()[row].module) - modules.begin();
    sums.select(0, place).copy_(meter.figures().select(0, static_cast<int64_t>(row)));
  }
  const at::Tensor largest = sums.narrow(2, kRoundingSums, kRoundingFigures - kRoundingSums).clone();
  comm::all_reduce(sums, world);
  comm::all_reduce(largest, world, comm::ReduceOp::max);
  sums.narrow(2, kRoundingSums, kRoundingFigures - kRoundingSums).copy_(largest);
  const at::Tensor host = device::read_on_host(process.world->target(), sums);
  std::vector<LayerRounding> layers;
  for (size_t i = 0; i < modules.size(); ++i) {
    LayerRounding& layer = layers.emplace_back(LayerRounding{modules[i], {}});
    std::copy_n(static_cast<const kernels::RoundingFigures*>(host.const_data_ptr()) + i * layer.operands.size(),
                layer.operands.size(), layer.operands.begin());
  }
  return layers;
}

std::string first_nonfinite_operand(const config::Precision& precision, const std::vector<LayerRounding>& layers) {
  const auto to_text = [&](const LayerRounding& layer, nn::Operand operand) {
    return base::concat("the ", kOperandNames[static_cast<size_t>(operand)], " of ", layer.module, " (",
                        config::to_setting(precision.find_recipe(layer.module)), ")");
  };
  const auto is_bad = [](const LayerRounding& layer, nn::Operand operand) {
    return layer.operands[static_cast<size_t>(operand)].nonfinite > 0;
  };
  for (const LayerRounding& layer : layers) {
    for (const nn::Operand operand : {nn::Operand::input, nn::Operand::weight})
      if (is_bad(layer, operand)) return to_text(layer, operand);
  }
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer)
    if (is_bad(*layer, nn::Operand::gradient)) return to_text(*layer, nn::Operand::gradient);
  return "";
}

}  // namespace metroplex::step

#include "verify/precision_check.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "config/validate.h"
#include "nn/segment.h"
#include "nn/stored_weight.h"
#include "step/step.h"
#include "verify/gather.h"
#include "verify/verify.h"

namespace metroplex::verify {
namespace {

struct BlockStates {
  std::string name;
  std::vector<std::string> params;
  at::Tensor states;  // undefined if the block returns none
};

struct StepRecord {
  double loss = 0;
  std::vector<BlockStates> blocks;
  std::map<std::string, at::Tensor> weights, gradients;
};

std::vector<BlockStates> run_blocks(step::Assembly& assembly, const nn::Microbatch& batch) {
  const at::NoGradGuard no_grad;
  std::vector<BlockStates> blocks;
  nn::Values values;
  for (const auto& stage : assembly.model.stages) {
    for (const nn::Block& block : stage->blocks()) {
      for (const auto& segment : block.segments) {
        nn::SegmentContext context{batch, false, {}};
        values = segment->forward(values, context);
        for (const auto& join : context.joins) join();
        for (auto& entry : values) entry.value.compute(batch);
      }
      BlockStates& states = blocks.emplace_back();
      states.name = block.name;
      for (const nn::Param* param : nn::list_params(block)) states.params.push_back(param->name);
      if (values.has(nn::kHiddenStates)) states.states = values.tensor(nn::kHiddenStates).to(at::kDouble);
    }
  }
  return blocks;
}

// `weights`: initial values, or null for those of the seed.
StepRecord record_step(const config::Config& config, const comm::World& world, int64_t vocab_size,
                       const StepRecord* weights) {
  const auto assembly = step::assemble(config, world, vocab_size);
  const auto begin = [&] {
    assembly->model.families.finish_gathers();
    if (weights == nullptr) return;
    for (nn::Param* param : assembly->model.params) nn::set_weight_values(*param, weights->weights.at(param->name));
  };
  begin();
  const at::ScalarType floats = assembly->process.dtype == at::kDouble ? at::kDouble : at::kFloat;
  const std::vector<nn::Microbatch> batches = synthetic_batches(config, world, vocab_size, 0, floats);
  StepRecord record;
  for (const nn::Param* param : assembly->model.params)
    record.weights.emplace(param->name, nn::weight_values(*param).to(at::kDouble, false, true));
  if (config.precision.delays_scales()) {  // without a history the scales are 1
    step::train_step(*assembly, {batches, 1, 0, false, {}});
    begin();
  }
  record.blocks = run_blocks(*assembly, batches.front());
  step::StepInput input{batches, 1, 0, false, {}};
  input.on_gradients = [&](double factor) {
    record.gradients =
        gather_whole(assembly->process, assembly->model, assembly->optimization, GatherKind::main_grad);
    for (auto& [name, gradient] : record.gradients) gradient = gradient.to(at::kDouble).mul(factor);
  };
  record.loss = step::train_step(*assembly, input).loss;
  return record;
}

double relative_error(const at::Tensor& got, const at::Tensor& exact) {
  return (got - exact).norm().item<double>() / std::max(exact.norm().item<double>(), 1e-300);
}

std::optional<double> gradient_error(const std::vector<std::string>& params, const StepRecord& got,
                                     const StepRecord& exact) {
  double difference = 0, size = 0;
  bool any = false;
  for (const std::string& name : params) {
    const auto found = exact.gradients.find(name);
    if (found == exact.gradients.end()) continue;  // frozen
    any = true;
    difference += (got.gradients.at(name) - found->second).square().sum().item<double>();
    size += found->second.square().sum().item<double>();
  }
  if (!any) return std::nullopt;
  return std::sqrt(difference / std::max(size, 1e-300));
}

PrecisionErrors compare_steps(const StepRecord& got, const StepRecord& exact) {
  PrecisionErrors errors;
  errors.loss = std::abs(got.loss - exact.loss) / std::abs(exact.loss);
  for (size_t i = 0; i < exact.blocks.size(); ++i) {
    const BlockStates& block = exact.blocks[i];
    BlockErrors& found = errors.blocks.emplace_back();
    found.name = block.name;
    if (block.states.defined()) found.states = relative_error(got.blocks[i].states, block.states);
    found.gradients = gradient_error(block.params, got, exact);
  }
  return errors;
}

}  // namespace

config::Config precision_check_config(const config::Config& requested) {
  const config::Precision& precision = requested.precision;
  MPX_CHECK(precision.half() || precision.rounds_operands(), "config",
            "precision.params_dtype = ", precision.params_dtype,
            " without precision.fp8_format or fp4_format: the check compares lower formats with float64; ",
            "set one of them");
  config::Config config = single_rank_config(verification_config(requested, 1));
  config.precision = precision;
  config.precision.fp8_param_gather = false;  // of one rank
  // run_blocks() runs layers without the observer that writes kept values.
  if (precision.rounds_operands()) config.precision.keep_rounded_weights = false;
  return config;
}

PrecisionCheck check_precision(const config::Config& config, const comm::World& world, int64_t vocab_size) {
  MPX_ASSERT(world.size() == 1, "a check of formats on ", world.size(), " ranks");
  config::Config plain = config, exact = config::in_double_precision(config);
  plain.precision = plain.precision.without_rounding();
  exact.precision = exact.precision.without_rounding();
  const StepRecord plain_step = record_step(plain, world, vocab_size, nullptr),
                   rounded_step = record_step(config, world, vocab_size, &plain_step),
                   exact_step = record_step(exact, world, vocab_size, &plain_step);
  return {exact_step.loss, compare_steps(rounded_step, exact_step), compare_steps(plain_step, exact_step)};
}

}  // namespace metroplex::verify

#include "parity/replay.h"

#include <ATen/ATen.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "nn/param_init.h"
#include "step/batch.h"
#include "verify/gather.h"
#include "forecast/graph_report.h"

namespace metroplex::parity {
namespace {

std::vector<nn::Microbatch> make_batches(const Spec& spec, const step::Assembly& assembly, int64_t iteration) {
  const int64_t dp = assembly.process.groups().dp.size(), dp_rank = assembly.process.groups().dp.index();
  std::vector<nn::Microbatch> batches;
  for (int64_t m = 0; m < spec.gbs / (spec.mbs * dp); ++m) {
    step::HostBatch host;
    host.numbers.first = iteration * spec.gbs + (m * dp + dp_rank) * spec.mbs;
    host.numbers.step = iteration;
    host.vocab_size = spec.vocab;
    for (int64_t s = 0; s < spec.mbs; ++s) {
      data::Sample sample;
      for (int64_t t = 0; t < spec.seq; ++t) {
        sample.tokens.push_back(recipe_token(host.numbers.first + s, t, spec.vocab));
        sample.labels.push_back(recipe_token(host.numbers.first + s, t + 1, spec.vocab));
        sample.position_ids.push_back(t);
        sample.loss_mask.push_back(t < spec.seq - spec.mask_last ? 1.0f : 0.0f);
      }
      host.samples.push_back(std::move(sample));
    }
    const auto mask = assembly.process.dtype == at::kDouble ? at::kDouble : at::kFloat;
    batches.push_back(step::on_device(step::stack_samples(host, mask), assembly.process.world->device()));
  }
  return batches;
}

// Element `index` of a whole parameter. The recipe has the experts of a stack one by one, by the names of its parts.
double recipe_element(const nn::Param& whole, int64_t index) {
  const bool experts = whole.placement.grid == topology::Grid::expert;
  const size_t dims = whole.global_shape.size() - (experts ? 1 : 0);
  if (!experts) return recipe_weight(whole.name, dims == 1, index);
  int64_t each = 1;
  for (size_t dim = 1; dim < whole.global_shape.size(); ++dim) each *= whole.global_shape[dim];
  return recipe_weight(whole.placement.regions.at(static_cast<size_t>(index / each)).name, dims == 1, index % each);
}

// Every parameter gets its whole values on a separate copy, of which this rank's shard is written: float32, then the
// type of the recorded run.
void set_recipe_weights(step::Assembly& assembly, at::ScalarType run_dtype) {
  for (const distributed::Shard& slice : assembly.model.slices) {
    nn::Param whole = *slice.param;
    whole.data = at::zeros(whole.local_shape, at::kFloat);
    nn::fill(whole,
             [&](int64_t index) { return static_cast<double>(static_cast<float>(recipe_element(whole, index))); });
    slice.values.copy_(whole.data.view(-1).narrow(0, slice.begin, slice.size()).to(run_dtype));
  }
  assembly.model.families.loaded();
  assembly.optimization.optimizer->copy_from_params();
}

config::Config make_config(const Spec& spec, const ReplayOptions& options) {
  config::Config config = spec.config;
  if (options.exact) {
    config.precision.params_dtype = "fp64";
    config.precision.main_grads_dtype = "auto";
    config.precision.loss_scale = 0;
    config.precision.fp32_residual_connection = false;
  }
  if (options.fault == Fault::learning_rate) config.optim.lr *= 1.1, config.optim.min_lr *= 1.1;
  if (options.fault == Fault::no_clip) config.optim.clip_grad = 0;
  return config;
}

void zero_layer(const step::Assembly& assembly) {
  for (const distributed::Shard& slice : assembly.model.slices) {
    if (slice.param->name.find("layers.0.") != std::string::npos) slice.gradient.zero_();
  }
}

// By the names of the golden run, which lists the experts of a stack one by one.
std::map<std::string, at::Tensor> in_double(const std::map<std::string, at::Tensor>& tensors, double factor = 1.0) {
  static const std::string kStack = ".mlp.experts.";
  std::map<std::string, at::Tensor> out;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor values = tensor.to(at::kDouble).mul_(factor);
    const size_t stack = name.find(kStack);
    if (stack == std::string::npos) {
      out[name] = values;
      continue;
    }
    const size_t at = stack + kStack.size();
    for (int64_t e = 0; e < values.size(0); ++e)
      out[name.substr(0, at) + "local_experts." + std::to_string(e) + "." + name.substr(at)] = values.select(0, e);
  }
  return out;
}

// The report of a step without update: the loss of its batch.
step::StepOutcome skipped_step(step::Assembly& assembly, const std::vector<nn::Microbatch>& batches) {
  step::StepOutcome outcome;
  outcome.loss = step::evaluate_step(assembly, batches).mean();
  outcome.updated = false;
  return outcome;
}

std::vector<at::Tensor> copy_params(const step::Assembly& assembly) {
  std::vector<at::Tensor> copies;
  for (const distributed::Shard& slice : assembly.model.slices) copies.push_back(slice.values.clone());
  return copies;
}

void write_back(step::Assembly& assembly, const std::vector<at::Tensor>& copies) {
  for (size_t i = 0; i < copies.size(); ++i) assembly.model.slices[i].values.copy_(copies[i]);
  assembly.model.families.loaded();
  assembly.optimization.optimizer->copy_from_params();
}

}  // namespace

Fault parse_fault(const std::string& name) {
  const std::pair<const char*, Fault> all[] = {{"none", Fault::none},
                                               {"no_update", Fault::no_update},
                                               {"learning_rate", Fault::learning_rate},
                                               {"zero_layer_gradient", Fault::zero_layer_gradient},
                                               {"half_main_params", Fault::half_main_params},
                                               {"no_clip", Fault::no_clip},
                                               {"absent_rank", Fault::absent_rank}};
  for (const auto& [word, fault] : all) {
    if (name == word) return fault;
  }
  MPX_CHECK(false, "parity", "--plant ", name, " is not a fault that can be planted");
}

Trajectory replay(const Spec& spec, const comm::World& world, const ReplayOptions& options) {
  auto assembly = step::assemble(make_config(spec, options), world, spec.vocab);
  set_recipe_weights(*assembly, step::scalar_type(spec.config.precision.params_dtype));
  Trajectory trajectory;
  const auto& history = spec.json.at("history");
  int64_t scheduled = 0;
  for (int64_t it = 0; it < spec.iters; ++it) {
    const auto batches = make_batches(spec, *assembly, it);
    const bool update_ok = history.at(static_cast<size_t>(it)).value("update_ok", true);
    if (options.exact && !update_ok) {
      trajectory.steps.push_back(skipped_step(*assembly, batches));
      continue;
    }
    step::StepInput input{batches, it + 1, scheduled, false, {}, nullptr};
    // A step whose gradients are compared runs without its graph.
    const bool compared = it == 0 && update_ok;
    if (compared || options.fault == Fault::zero_layer_gradient) {
      input.on_gradients = [&](double unscale) {
        if (options.fault == Fault::zero_layer_gradient) zero_layer(*assembly);
        if (compared)
          trajectory.gradients =
              in_double(verify::gather_whole(assembly->process, assembly->model, assembly->optimization,
                                             verify::GatherKind::main_grad),
                        unscale);
      };
    }
    if (options.fault == Fault::absent_rank && world.rank() == 1 && it + 1 == spec.iters)
      std::this_thread::sleep_for(std::chrono::hours(1));
    const std::vector<at::Tensor> before =
        options.fault == Fault::no_update ? copy_params(*assembly) : std::vector<at::Tensor>{};
    trajectory.steps.push_back(step::train_step(*assembly, input));
    // The rate itself is compared separately; only its effect matters here.
    if (options.fault == Fault::learning_rate) trajectory.steps.back().lr /= 1.1;
    if (options.fault == Fault::no_update) write_back(*assembly, before);
    if (options.fault == Fault::half_main_params) assembly->optimization.optimizer->copy_from_params();
    if (trajectory.steps.back().updated) scheduled += spec.gbs;
  }
  MPX_CHECK(!assembly->process.graph_device || forecast::captured_graphs(assembly->graphs) > 0, "parity",
            "nothing was replayed of ", spec.iters, " steps");
  trajectory.parameters = in_double(
      verify::gather_whole(assembly->process, assembly->model, assembly->optimization, verify::GatherKind::data));
  return trajectory;
}

}  // namespace metroplex::parity

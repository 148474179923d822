#include "mcore/write_common.h"

namespace metroplex::mcore {
namespace {

using nlohmann::json;
using pickle::ValueWriter;

void add_text(const char* key, const std::string& value, ValueWriter& out) {
  out.text(key);
  out.text(value);
}
void add_integer(const char* key, int64_t value, ValueWriter& out) {
  out.text(key);
  out.integer(value);
}
void add_real(const char* key, double value, ValueWriter& out) {
  out.text(key);
  out.real(value);
}
void add_boolean(const char* key, bool value, ValueWriter& out) {
  out.text(key);
  out.boolean(value);
}

// The state of Megatron's OptimizerParamScheduler. Its steps are samples, as ours.
void add_schedule(const CommonState& state, ValueWriter& out) {
  const auto found = state.extra.find("schedule");
  if (found == state.extra.end() || !found->is_object()) return;
  out.text("opt_param_scheduler");
  out.begin_dict();
  for (const char* key : {"max_lr", "min_lr", "start_wd", "end_wd"}) add_real(key, found->at(key), out);
  for (const char* key : {"lr_warmup_steps", "lr_decay_steps", "wd_incr_steps"})
    add_integer(key, found->at(key), out);
  for (const char* key : {"lr_decay_style", "wd_incr_style"}) add_text(key, found->at(key), out);
  add_integer("num_steps", state.extra.value("scheduled_samples", state.progress.consumed_samples), out);
  out.end_dict();
}

// A group of parameters with or without weight decay; the loading optimizer selects its groups by the first four
// values.
void add_group(const CommonState& state, bool is_expert, double wd_mult, ValueWriter& out) {
  const config::Optim& optim = state.config.optim;
  out.begin_dict();
  add_real("wd_mult", wd_mult, out);
  add_real("lr_mult", 1, out);
  add_boolean("is_expert_parallel", is_expert, out);
  add_boolean("is_decoupled_lr", false, out);
  add_boolean("default_config", true, out);
  add_real("max_lr", optim.lr, out);
  add_real("min_lr", optim.min_lr, out);
  add_real("lr", optim.lr, out);
  out.text("betas");
  out.begin_tuple();
  out.real(optim.adam_beta1);
  out.real(optim.adam_beta2);
  out.end_tuple();
  add_real("eps", optim.adam_eps, out);
  add_real("weight_decay", optim.weight_decay * wd_mult, out);
  add_boolean("bias_correction", true, out);
  for (const char* key : {"amsgrad", "maximize", "capturable", "differentiable"}) add_boolean(key, false, out);
  for (const char* key : {"foreach", "fused"}) {
    out.text(key);
    out.none();
  }
  add_boolean("decoupled_weight_decay", true, out);
  add_integer("step", state.extra.at("optimizer_steps"), out);
  out.end_dict();
}

void add_optimizer(const CommonState& state, bool is_expert, ValueWriter& out) {
  out.begin_dict();
  out.text("optimizer");
  out.begin_dict();
  out.text("param_groups");
  out.begin_list();
  for (const double wd_mult : {1.0, 0.0}) add_group(state, is_expert, wd_mult, out);
  out.end_list();
  out.end_dict();
  add_text("param_state_sharding_type", "fully_reshardable", out);
  out.end_dict();
}

// With expert parallelism, Megatron has two optimizers: the second one updates the experts.
void add_optimizers(const CommonState& state, ValueWriter& out) {
  out.text("optimizer");
  if (!state.config.model.has_experts() || state.config.parallel.expert_model_parallel_size == 1)
    return add_optimizer(state, false, out);
  out.begin_dict();
  for (const bool is_expert : {false, true}) {
    out.integer(is_expert ? 1 : 0);
    add_optimizer(state, is_expert, out);
  }
  out.end_dict();
}

}  // namespace

std::string pickle_common(const CommonState& state) {
  ValueWriter out;
  out.begin_dict();
  out.text("args");
  write_arguments(state.config, state.progress, out);
  add_real("checkpoint_version", 3, out);
  add_integer("iteration", state.progress.iteration, out);
  add_real("num_floating_point_operations_so_far", 0, out);
  add_schedule(state, out);
  if (state.progress.has_optimizer) add_optimizers(state, out);
  out.text("content_metadata");
  out.begin_dict();
  add_boolean("non_homogeneous_layers", true, out);
  add_boolean("singleton_local_shards", false, out);
  add_text("distrib_optim_sharding_type", "fully_reshardable", out);
  add_boolean("chained_optim_avoid_prefix", true, out);
  out.end_dict();
  out.end_dict();
  return out.take();
}

}  // namespace metroplex::mcore

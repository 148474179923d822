// Rules for number formats, the loss scale and optimizer state.
#include "config/rules.h"

#include <limits>

#include "base/error.h"
#include "config/optimizers.h"
#include "config/optim.h"

namespace metroplex::config {

using base::concat;

static std::string format_name(const Precision& precision) {
  return "precision.params_dtype = " + precision.params_dtype;
}

static void check_loss_scale(Rules& rules) {
  const Precision& precision = rules.config.precision;
  rules.require(precision.loss_scale == 0 || precision.params_dtype != ParamsDtype::fp64, "precision.loss_scale",
                precision.loss_scale,
                "has no meaning with " + format_name(precision) + ", whose gradients do not underflow", "leave it 0");
  rules.require(
      precision.min_loss_scale <= precision.initial_loss_scale, "precision.min_loss_scale", precision.min_loss_scale,
      "must not exceed precision.initial_loss_scale = " + number_text(precision.initial_loss_scale), "lower it");
}

void check_precision(Rules& rules) {
  const Precision& precision = rules.config.precision;
  check_loss_scale(rules);
  rules.require(!precision.fp32_residual_connection || precision.half(), "precision.fp32_residual_connection", "true",
                "needs half-precision activations, but " + format_name(precision),
                "turn it off, or use bf16 or fp16");
  rules.require(precision.output_logit_dtype == OutputLogitDtype::params || precision.half(),
                "precision.output_logit_dtype", precision.output_logit_dtype,
                "is for half-precision parameters, but " + format_name(precision), "use params");
  rules.require(precision.main_grads_dtype != MainGradsDtype::fp32 || precision.params_dtype != ParamsDtype::fp64,
                "precision.main_grads_dtype", precision.main_grads_dtype,
                "would round the gradients of " + format_name(precision), "use auto");
  rules.require(precision.main_grads_dtype != MainGradsDtype::params || precision.params_dtype != ParamsDtype::fp32,
                "precision.main_grads_dtype", precision.main_grads_dtype,
                "is for half-precision parameters, but " + format_name(precision) + " is fp32 anyway", "use auto");
}

// True if the optimizer does not support formats below fp32; `rule` then contains the optimizers that do.
static bool refuses_formats(const Optim& optim, std::string& rule) {
  const OptimizerTraits* const chosen = find_optimizer(optim.optimizer);
  if (chosen != nullptr && chosen->low_precision_state) return false;
  std::string names;
  for (const OptimizerTraits& optimizer : optimizers()) {
    if (optimizer.low_precision_state) names += (names.empty() ? "" : " or ") + std::string(optimizer.name);
  }
  rule = "is for optim.optimizer = " + names + ", not " + optim.optimizer;
  return true;
}

// An fp64 run uses fp64 throughout.
static void check_moments(Rules& rules) {
  const Optim& optim = rules.config.optim;
  const Precision& precision = rules.config.precision;
  const std::pair<const char*, Choice<MomentDtype>> moments[] = {{"optim.exp_avg_dtype", optim.exp_avg_dtype},
                                                                 {"optim.exp_avg_sq_dtype", optim.exp_avg_sq_dtype}};
  std::string others;
  const bool refused = refuses_formats(optim, others);
  for (const auto& [key, format] : moments) {
    rules.require(format == MomentDtype::fp32 || !refused, key, format, others, "use fp32");
    rules.require(format == MomentDtype::fp32 || precision.params_dtype != ParamsDtype::fp64, key, format,
                  "would round the state of a run with " + format_name(precision),
                  "use fp32, which is fp64 in such a run");
  }
}

static void check_main_params(Rules& rules) {
  const Optim& optim = rules.config.optim;
  const Precision& precision = rules.config.precision;
  static constexpr const char* kMain = "optim.main_params_dtype";
  static constexpr const char* kRemainders = "optim.store_param_remainders";
  const bool lower = optim.main_params_dtype != MainParamsDtype::fp32;
  std::string others;
  const bool refused = refuses_formats(optim, others);
  rules.require(!lower || !refused, kMain, optim.main_params_dtype, others, "use fp32");
  rules.require(!lower || precision.half(), kMain, optim.main_params_dtype,
                "is for half-precision parameters, but " + format_name(precision),
                "use fp32: there is no main copy then");
  rules.require(!lower || precision.params_dtype != ParamsDtype::fp16, kMain, optim.main_params_dtype,
                "has fewer digits than the parameters it should keep exact: " + format_name(precision), "use fp32");
  if (!optim.store_param_remainders) return;
  rules.require(precision.params_dtype == ParamsDtype::bf16, kRemainders, "true",
                "needs parameters that are the upper half of an fp32 number, but " + format_name(precision),
                "turn it off, or use bf16");
  rules.require(!lower, kRemainders, "true",
                concat("needs ", kMain, " = fp32, not ", optim.main_params_dtype, ", which leaves no remainder"),
                "keep one of the two");
  rules.require(!refused, kRemainders, "true", others, "turn it off");
}

// Returns why fp32 cannot represent `value` (>= 0), or "" if it can after rounding.
static std::string fp32_problem(double value) {
  using Fp32 = std::numeric_limits<float>;
  if (value > Fp32::max()) return "is infinite in fp32, in which the optimizer computes";
  return value > 0 && value <= Fp32::denorm_min() / 2.0 ? "is 0 in fp32, in which the optimizer computes" : "";
}

static const std::string kFp32Fix = "give a number from 1.5e-45 to 3.4e38, or precision.params_dtype = fp64";

// Checks values whose meaning changes if fp32 rounds them to 0 or infinity. Betas are not among them.
static void check_fp32_numbers(Rules& rules) {
  const Optim& optim = rules.config.optim;
  if (rules.config.precision.params_dtype == ParamsDtype::fp64) return;
  const std::pair<const char*, double> numbers[] = {{"optim.lr", optim.lr},
                                                    {"optim.min_lr", optim.min_lr},
                                                    {"optim.lr_warmup_init", optim.lr_warmup_init},
                                                    {"optim.decoupled_lr", optim.decoupled_lr},
                                                    {"optim.decoupled_min_lr", optim.decoupled_min_lr},
                                                    {"optim.weight_decay", optim.weight_decay},
                                                    {"optim.start_weight_decay", optim.start_weight_decay},
                                                    {"optim.end_weight_decay", optim.end_weight_decay},
                                                    {"optim.adam_eps", optim.adam_eps},
                                                    {"optim.muon_extra_scale_factor", optim.muon_extra_scale_factor},
                                                    {"optim.clip_grad", optim.clip_grad}};
  for (const auto& [key, value] : numbers) {
    const std::string problem = fp32_problem(value);
    rules.require(problem.empty(), key, value, problem, kFp32Fix);
  }
}

void check_optimizer_state(Rules& rules) {
  const Optim& optim = rules.config.optim;
  check_fp32_numbers(rules);
  check_moments(rules);
  check_main_params(rules);
  const OptimizerTraits* const optimizer = find_optimizer(optim.optimizer);
  const bool whole_matrices = optimizer != nullptr && optimizer->others != nullptr;
  rules.require(!optim.optimizer_cpu_offload || !whole_matrices, "optim.optimizer_cpu_offload", "true",
                concat("moves parameters to the host in chunks, but optim.optimizer = ", optim.optimizer,
                       " needs whole matrices"),
                "turn it off, or use another optimizer");
  for (const std::string& text : optim.param_groups) {
    std::string problem;
    const auto rule = read_param_group(text, problem);
    rules.require(rule.has_value(), "optim.param_groups", text, "cannot be read: " + problem,
                  "write it like \"*.bias lr_mult=2 wd_mult=0\"");
    if (!rule) continue;
    const double start =
        rule->start_wd.value_or(optim.start_weight_decay < 0 ? optim.weight_decay : optim.start_weight_decay);
    const double end =
        rule->end_wd.value_or(optim.end_weight_decay < 0 ? optim.weight_decay : optim.end_weight_decay);
    rules.require(start <= end && (start == end || optim.weight_decay_incr_style != WeightDecayIncr::constant),
                  "optim.param_groups", text,
                  base::concat("changes the weight decay from ", start, " to ", end,
                               "; it may only grow, and not where optim.weight_decay_incr_style is constant"),
                  "give start_wd and end_wd together, or set the style to linear or cosine");
  }
}

}  // namespace metroplex::config

// Rules for products in 8 bits.
#include "config/rules.h"

#include "base/error.h"

namespace metroplex::config {

using base::concat;

namespace {

constexpr const char* kFp8 = "precision.fp8_format";
constexpr const char* kRecipe = "precision.fp8_recipe";
constexpr const char* kExcludes = "precision.first_last_layers_bf16";

void check_needs(Rules& rules) {
  const Precision& precision = rules.config.precision;
  const bool fp8 = precision.fp8_format != Fp8Format::none;
  if (!fp8) refuse_without(rules, kFp8, [](std::string_view name) { return name == "fp8_recipe"; });
  if (!fp8 || precision.fp8_recipe != Fp8Recipe::delayed) {
    refuse_without(rules, "precision.fp8_recipe = delayed", [](std::string_view name) {
      return name == "fp8_margin" || name == "fp8_amax_history_len" || name == "fp8_amax_compute_algo";
    });
  }
  if (!precision.rounds_operands())
    refuse_without(rules, kFp8, [](std::string_view name) { return name == "first_last_layers_bf16"; });
  if (!precision.first_last_layers_bf16) {
    refuse_without(rules, kExcludes, [](std::string_view name) {
      return name == "num_layers_at_start_in_bf16" || name == "num_layers_at_end_in_bf16";
    });
  }
}

void check_excluded_layers(Rules& rules) {
  const Precision& precision = rules.config.precision;
  const int64_t excluded = precision.num_layers_at_start_in_bf16 + precision.num_layers_at_end_in_bf16;
  rules.require(
      !precision.rounds_operands() || !precision.first_last_layers_bf16 || excluded < rules.config.model.num_layers,
      kExcludes, "true",
      concat("leaves no layer in low precision: ", excluded, " layers of ", rules.config.model.num_layers,
             " are excluded"),
      "lower num_layers_at_start_in_bf16 or num_layers_at_end_in_bf16, or turn low precision off");
}

}  // namespace

void check_low_precision(Rules& rules) {
  const Precision& precision = rules.config.precision;
  check_needs(rules);
  check_excluded_layers(rules);
  if (!precision.rounds_operands()) return;
  rules.require(!precision.delays_scales() || !rules.config.model.moe_enable_echo, "model.moe_enable_echo", "true",
                "moves experts between ranks, which would need the scales of other ranks",
                concat("use another ", kRecipe));
  rules.require(!precision.has_tensor_factors() || !rules.config.parallel.hybrid_context_parallel,
                "parallel.hybrid_context_parallel", "true",
                concat("changes the ranks that share a sequence, but ", precision.recipe_text(),
                       " has a factor of the whole tensor"),
                concat("use ", kRecipe, " = blockwise or mxfp8"));
}

}  // namespace metroplex::config

// Rules for products in 8 and 4 bits.
#include "config/rules.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "config/module_pattern.h"

namespace metroplex::config {

using base::concat;

namespace {

constexpr const char* kFp8 = "precision.fp8_format";
constexpr const char* kFp4 = "precision.fp4_format";
constexpr const char* kEither = "precision.fp8_format or fp4_format";
constexpr const char* kRecipe = "precision.fp8_recipe";
constexpr const char* kRecipePattern = "precision.recipe_pattern";
constexpr const char* kParamGather = "precision.fp8_param_gather";
constexpr const char* kExcludes = "precision.first_last_layers_bf16";

bool belongs_to(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_needs(Rules& rules) {
  const Precision& precision = rules.config.precision;
  const bool fp8 = precision.fp8_format != Fp8Format::none, fp4 = precision.fp4_format != Fp4Format::none;
  if (!fp8) refuse_without(rules, kFp8, [](std::string_view name) { return name == "fp8_recipe"; });
  if (!precision.has_recipe(Recipe::nvfp4)) {
    refuse_without(rules, kFp4, [](std::string_view name) {
      return belongs_to(name, {"fp4_hadamard", "fp4_stochastic_rounding", "fp4_square_weights"});
    });
  }
  if (!precision.delays_scales()) {
    refuse_without(rules, "precision.fp8_recipe = delayed", [](std::string_view name) {
      return belongs_to(name, {"fp8_margin", "fp8_amax_history_len", "fp8_amax_compute_algo"});
    });
  }
  if (!fp8 && !fp4) {
    refuse_without(rules, kEither, [](std::string_view name) {
      return belongs_to(name, {"first_last_layers_bf16", "recipe_pattern", "fp8_wgrad", "fp8_output_proj",
                               "fp8_products", "fp8_param_gather", "keep_rounded_weights", "log_rounding_interval"});
    });
  }
  if (!precision.first_last_layers_bf16) {
    refuse_without(rules, kExcludes, [](std::string_view name) {
      return belongs_to(name, {"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"});
    });
  }
  rules.require(!fp8 || !fp4, kFp4, precision.fp4_format.text(), concat("excludes ", kFp8),
                "set one of the two to none; recipe_pattern mixes recipes");
}

void check_recipe_patterns(Rules& rules) {
  for (const std::string& text : rules.config.precision.recipe_pattern) {
    const auto entry = read_module_entry(text);
    rules.require(
        entry && value_of<Recipe>(entry->value), kRecipePattern, text,
        "must be PATTERN=RECIPE with a regular expression and none, delayed, tensorwise, blockwise, mxfp8 or "
        "nvfp4",
        "write it like linear_fc2=none, several in a list");
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

void check_param_gather(Rules& rules) {
  const Precision& precision = rules.config.precision;
  if (!precision.fp8_param_gather) return;
  const std::vector<Recipe> recipes = precision.recipes();
  rules.require(std::any_of(recipes.begin(), recipes.end(), gathers_codes), kParamGather, "true",
                concat("the two products of a weight must read the same 8-bit codes, but they do not with ",
                       to_setting(recipes.front())),
                concat("use ", kRecipe, " = delayed, tensorwise or blockwise, or turn it off"));
  rules.require_effect(rules.config.parallel.sharding().any(), kParamGather, "true",
                       "has no effect without sharding, because no parameters are gathered",
                       "set parallel.data_parallel_sharding_strategy to optim, or turn it off");
  rules.require(
      !rules.config.model.moe_enable_echo, "model.moe_enable_echo", "true",
      concat("moves experts between ranks in params_dtype, but with ", kParamGather, " no rank holds their values"),
      concat("turn off ", kParamGather));
}

}  // namespace

void check_low_precision(Rules& rules) {
  const Precision& precision = rules.config.precision;
  check_needs(rules);
  check_recipe_patterns(rules);
  check_excluded_layers(rules);
  if (!precision.rounds_operands()) return;
  check_param_gather(rules);
  rules.require(!precision.delays_scales() || !rules.config.model.moe_enable_echo, "model.moe_enable_echo", "true",
                "moves experts between ranks, which would need the scales of other ranks",
                concat("use another ", kRecipe));
  rules.require(!precision.fp8_output_proj || precision.find_recipe("output_layer") != Recipe::nvfp4,
                "precision.fp8_output_proj", "true", "the output layer cannot have 4 bits",
                concat("add output_layer=mxfp8 to ", kRecipePattern, ", or turn it off"));
  const bool library = precision.fp8_products == Fp8Products::library;
  rules.require(!library || precision.params_dtype != ParamsDtype::fp64, "precision.fp8_products", "library",
                "has no version for fp64", "set it to widened, or precision.params_dtype to another format");
  const Run& run = rules.config.run;
  const bool shares_gpu = run.device == Device::cuda && run.backend == Backend::threads && rules.world_size > 1;
  rules.require(!library || !shares_gpu || !precision.has_recipe(Recipe::nvfp4), "precision.fp8_products", "library",
                concat("stores a factor of NVFP4 once for each process, but with run.backend = threads ",
                       rules.world_size, " ranks share the process and its GPU"),
                "set it to widened, or run.backend to nccl");
  for (const Recipe recipe : precision.recipes()) {
    rules.require(!has_tensor_factor(recipe) || !rules.config.parallel.hybrid_context_parallel,
                  "parallel.hybrid_context_parallel", "true",
                  concat("changes the ranks that share a sequence, but ", to_setting(recipe),
                         " has a factor of the whole tensor"),
                  concat("use ", kRecipe, " = blockwise or mxfp8"));
  }
}

}  // namespace metroplex::config

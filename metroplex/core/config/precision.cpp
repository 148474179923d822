#include "config/precision.h"

#include <algorithm>

#include "config/module_pattern.h"

namespace metroplex::config {

int64_t operand_block(Recipe recipe) {
  switch (recipe) {
    case Recipe::blockwise:
      return 128;
    case Recipe::mxfp8:
      return 32;
    case Recipe::nvfp4:
      return 16;
    case Recipe::none:
    case Recipe::delayed:
    case Recipe::tensorwise:
      break;
  }
  return 0;
}

bool has_one_factor(Recipe recipe) { return recipe == Recipe::delayed || recipe == Recipe::tensorwise; }

bool gathers_codes(Recipe recipe) { return has_one_factor(recipe) || recipe == Recipe::blockwise; }

bool has_tensor_factor(Recipe recipe) { return has_one_factor(recipe) || recipe == Recipe::nvfp4; }

std::string to_setting(Recipe recipe) {
  return recipe == Recipe::nvfp4 ? "precision.fp4_format = e2m1"
                                 : std::string("precision.fp8_recipe = ") + text_of(recipe);
}

Recipe Precision::recipe() const {
  if (fp4_format != Fp4Format::none) return Recipe::nvfp4;
  return fp8_format == Fp8Format::none ? Recipe::none : value_of<Recipe>(fp8_recipe.text()).value();
}

namespace {

struct RecipeEntry {
  std::string pattern;
  Recipe recipe;
};

// The valid entries of recipe_pattern; rules_low_precision.cpp refuses the others.
std::vector<RecipeEntry> read_entries(const std::vector<std::string>& texts) {
  std::vector<RecipeEntry> entries;
  for (const std::string& text : texts) {
    const auto entry = read_module_entry(text);
    const auto recipe = entry ? value_of<Recipe>(entry->value) : std::nullopt;
    if (recipe) entries.push_back({entry->pattern, *recipe});
  }
  return entries;
}

}  // namespace

Recipe Precision::find_recipe(const std::string& module) const {
  for (const RecipeEntry& entry : read_entries(recipe_pattern))
    if (matches_module(entry.pattern, module)) return entry.recipe;
  return recipe();
}

std::vector<Recipe> Precision::recipes() const {
  std::vector<Recipe> all;
  const auto add = [&](Recipe recipe) {
    if (recipe != Recipe::none && std::find(all.begin(), all.end(), recipe) == all.end()) all.push_back(recipe);
  };
  add(recipe());
  for (const RecipeEntry& entry : read_entries(recipe_pattern)) add(entry.recipe);
  return all;
}

bool Precision::has_recipe(Recipe recipe) const {
  const std::vector<Recipe> all = recipes();
  return std::find(all.begin(), all.end(), recipe) != all.end();
}

bool Precision::has_tensor_factors() const {
  const std::vector<Recipe> all = recipes();
  return std::any_of(all.begin(), all.end(), has_tensor_factor);
}

Precision Precision::without_rounding() const {
  Precision plain = *this;
  plain.fp8_format = Fp8Format::none;
  plain.fp4_format = Fp4Format::none;
  plain.recipe_pattern.clear();
  return plain;
}

Precision Precision::of_layer(int64_t layer, int64_t num_layers) const {
  const bool first = layer < num_layers_at_start_in_bf16,
             last = layer < num_layers && layer >= num_layers - num_layers_at_end_in_bf16;
  return first_last_layers_bf16 && (first || last) ? without_rounding() : *this;
}

}  // namespace metroplex::config

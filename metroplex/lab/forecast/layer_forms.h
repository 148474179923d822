// Layers of a model by form: layers of one form have equal costs. The search traces one layer of each form.
#pragma once

#include <cstddef>
#include <vector>

#include "config/config.h"

namespace metroplex::forecast {

struct LayerForms {
  config::Config config;         // with one layer of each form, in the order of the forms
  std::vector<size_t> of_layer;  // form of each layer of the model

  size_t count() const { return static_cast<size_t>(config.model.num_layers); }
};

// Layers differ by sublayers, attention window, rotary positions, and precision.first_last_layers_bf16. Entries of
// precision.recipe_pattern that name layers by number are not considered.
LayerForms find_layer_forms(const config::Config& config);

}  // namespace metroplex::forecast

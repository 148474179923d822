#include "config/precision.h"

namespace metroplex::config {

int64_t Precision::operand_block() const {
  switch (fp8_recipe) {
    case Fp8Recipe::blockwise:
      return 128;
    case Fp8Recipe::mxfp8:
      return 32;
    case Fp8Recipe::delayed:
    case Fp8Recipe::tensorwise:
      break;
  }
  return 0;
}

std::string Precision::recipe_text() const { return "precision.fp8_recipe = " + fp8_recipe; }

Precision Precision::of_layer(int64_t layer, int64_t num_layers) const {
  Precision own = *this;
  const bool first = layer < num_layers_at_start_in_bf16,
             last = layer < num_layers && layer >= num_layers - num_layers_at_end_in_bf16;
  if (!first_last_layers_bf16 || (!first && !last)) return own;
  own.fp8_format = Fp8Format::none;
  return own;
}

}  // namespace metroplex::config

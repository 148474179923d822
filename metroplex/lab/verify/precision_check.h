// Compares a step in the number formats of a config with the same step without 8-bit products and with the step in
// float64, block by block. All three begin with the same weights, those rounded to precision.params_dtype.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/config.h"

namespace metroplex::verify {

// Relative errors |x - exact| / |exact| of a block (Euclidean norms).
struct BlockErrors {
  std::string name;                 // "decoder.layers.3"
  std::optional<double> states;     // hidden states after the block, if it returns any; first microbatch
  std::optional<double> gradients;  // gradients of its trained parameters, if it has any; whole step
};

struct PrecisionErrors {
  double loss = 0;
  std::vector<BlockErrors> blocks;  // in model order
};

struct PrecisionCheck {
  double exact_loss = 0;
  PrecisionErrors rounded;  // in the formats of the config
  PrecisionErrors plain;    // without precision.fp8_format
};

// Returns the single-rank config of the check, in the formats of `config`. Throws base::Error("config") if the
// formats are those of the exact step.
config::Config precision_check_config(const config::Config& config);

// `config`: from precision_check_config, resolved. `world` has one rank.
PrecisionCheck check_precision(const config::Config& config, const comm::World& world, int64_t vocab_size);

}  // namespace metroplex::verify

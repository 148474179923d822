// Compares the run that saved a checkpoint with this run. Tensors of different models may have equal shapes, so
// configurations and tokenizers are compared as well.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "files/manifest.h"
#include "text/tokenizer_files.h"

namespace metroplex::run {

struct Difference {
  std::string key, here, there;
};

// Compares the keys of section `model` and the tokenizer, if both sides have one. Skips keys that only affect
// initialization, regularization, padding or MoE balancing and dispatch.
std::vector<Difference> model_differences(const config::Config& config, const text::TokenizerFiles* tokenizer,
                                          const files::Manifest& manifest);

// Throws base::Error with every difference that checkpoint.allow does not name. Returns the allowed differences.
std::vector<Difference> check_compatible(const config::Config& config, const text::TokenizerFiles* tokenizer,
                                         const files::Manifest& manifest, const std::string& path);

// Throws base::Error if the checkpoint's moments belong to another optimizer.
void check_optimizer(const config::Config& config, const files::Manifest& manifest, const std::string& path);

}  // namespace metroplex::run

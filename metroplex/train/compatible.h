// Compares the run that saved a checkpoint with this one. Tensors of a different model may still have the same
// shapes, so differences that would make the same weights another function are found in the configurations and
// tokenizers.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "files/manifest.h"
#include "text/tokenizer_files.h"

namespace metroplex::train {

struct Difference {
  std::string key, here, there;
};

// Keys of the section model (without those that only initialise, regularise or pad), and the tokenizer, as far as
// both sides know theirs.
std::vector<Difference> model_differences(const config::Config& config, const text::TokenizerFiles* tokenizer,
                                          const files::Manifest& manifest);

// Throws base::Error that lists every difference that checkpoint.allow does not name; returns those that it names.
std::vector<Difference> check_compatible(const config::Config& config, const text::TokenizerFiles* tokenizer,
                                         const files::Manifest& manifest, const std::string& path);

// Throws base::Error where the checkpoint's moments are of another optimizer.
void check_optimizer(const config::Config& config, const files::Manifest& manifest, const std::string& path);

}  // namespace metroplex::train

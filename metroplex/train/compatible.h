// What a checkpoint was made with against what this run is. A tensor fits wherever its shape does, so a difference
// that would make the same weights another function is looked for in the configurations and in the tokenizers.
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

// Moments of one rule mean nothing to another. Throws base::Error.
void check_optimizer(const config::Config& config, const files::Manifest& manifest, const std::string& path);

}  // namespace metroplex::train

// The tokenizer of a config, and the facts about it that training uses.
#pragma once

#include <memory>

#include "config/config.h"
#include "text/tokenizer.h"
#include "run/trainer.h"

namespace metroplex::apps {

// Returns null for data.tokenizer_type none.
std::unique_ptr<text::Tokenizer> load_run_tokenizer(const config::Data& data);

std::shared_ptr<const text::TokenizerFiles> run_tokenizer_files(const config::Data& data);

// Sets model.vocab_size from the tokenizer if it is 0. Throws if it is set but smaller than the tokenizer's.
// config::check reports impossible sizes together with all other violations.
run::TokenizerFacts tokenizer_facts(config::Config& config);

// Replaces train.train_epochs by train.train_samples, computed from the index files of the training data, and returns
// the checked config. Throws base::Error("config") if the epochs have fewer samples than the first global batch.
config::Config checked_with_epochs(const config::Config& given, int64_t world_size);

}  // namespace metroplex::apps

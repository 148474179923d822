// The tokenizer that a config names, and what training needs to know of it.
#pragma once

#include <memory>

#include "config/config.h"
#include "text/tokenizer.h"
#include "train/trainer.h"

namespace metroplex::apps {

// Null with data.tokenizer_type none.
std::unique_ptr<text::Tokenizer> load_run_tokenizer(const config::Data& data);

// The files that it was loaded from, for the checkpoints.
std::shared_ptr<const text::TokenizerFiles> run_tokenizer_files(const config::Data& data);

// Fills model.vocab_size from the tokenizer when it is 0; throws when both are given and the tokenizer's is larger. A
// size that cannot be is left to config::check, which says it with all else that is wrong.
train::TokenizerFacts tokenizer_facts(config::Config& config);

// Replaces train.train_epochs by train.train_samples, counted from the index files of the training data.
void take_epochs(config::Config& config);

}  // namespace metroplex::apps

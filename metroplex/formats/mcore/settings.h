// Settings of a run from the arguments that Megatron-LM stores in its checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mcore/contents.h"

namespace metroplex::mcore {

// Converts Megatron's args to keys of section model, with the flags of megatron/flags.h, and adds
// precision.params_dtype and train.seq_length. model.vocab_size is the number of rows of the stored embedding:
// Megatron's softmax includes its padding.
std::vector<std::string> read_settings(const Contents& contents, const std::string& directory);
// Returns args.consumed_train_samples.
int64_t consumed_samples(const Contents& contents);

}  // namespace metroplex::mcore

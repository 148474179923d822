// What the start of a run looks at besides its configuration, looked at without a start: the folder it saves to, the
// data, the checkpoint it would go on from. Nothing is made or written.
#pragma once

#include "config/config.h"
#include "files/file_system.h"
#include "train/trainer.h"

namespace metroplex::train {

// Throws what the start would. Data that cannot be read here is no obstacle: a dry run may be far from it.
void check_start(const config::Config& config, const TokenizerFacts& tokenizer, int64_t world_size,
                 files::FileSystem& disk);

}  // namespace metroplex::train

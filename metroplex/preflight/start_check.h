// The check at the start of a run: what it would find (the folder it saves to, the data, the checkpoint it would go
// on from), looked at without a start; and whether it fits, on ranks that a launcher started on machines of their
// own.
#pragma once

#include <functional>
#include <string>

#include "comm/world.h"
#include "config/config.h"
#include "files/file_system.h"
#include "preflight/fit.h"
#include "train/trainer.h"

namespace metroplex::preflight {

// Throws what the start would; makes and writes nothing. Data that cannot be read here is no obstacle: a dry run may
// be far from it.
void check_start(const config::Config& config, const train::TokenizerFacts& tokenizer, int64_t world_size,
                 files::FileSystem& disk);

struct StartVerdict {
  int64_t need = 0;  // the largest of all places, in bytes
  int misfit = -1;   // the lowest rank whose place does not do; -1: all fit
};

// Collective: each rank has looked at its own place, and all go on or none does. The lowest rank that does not fit
// hands its `refusal()` to `say` before any rank returns: one that ended earlier would have its launcher end the one
// that speaks.
StartVerdict check_together(const Fit& mine, const comm::World& world, const std::function<std::string()>& refusal,
                            const std::function<void(const std::string&)>& say);

}  // namespace metroplex::preflight

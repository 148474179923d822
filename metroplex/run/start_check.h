// The checks at the start of a run, without starting it: save folder, data, and the checkpoint to resume from. Also
// checks that the run fits on ranks that a launcher started on separate machines.
#pragma once

#include <functional>
#include <string>

#include "comm/world.h"
#include "config/config.h"
#include "files/file_system.h"
#include "forecast/fit.h"
#include "run/trainer.h"

namespace metroplex::run {

// Throws the errors that a start would throw; writes nothing. Ignores data that cannot be read on this machine,
// because a dry run may not have the data.
void check_start(const config::Config& config, const run::TokenizerFacts& tokenizer, int64_t world_size,
                 files::FileSystem& disk);

struct StartVerdict {
  int64_t need = 0;  // largest need of all domains, in bytes
  int misfit = -1;   // lowest rank whose domain is too small; -1: all fit
};

// Collective. Each rank passes the fit of its own domain; all ranks get the same result. The lowest rank that does
// not fit passes its `refusal()` to `say` before any rank returns. If another rank ended earlier, its launcher could
// end the reporting rank.
StartVerdict check_together(const forecast::Fit& mine, const comm::World& world,
                            const std::function<std::string()>& refusal,
                            const std::function<void(const std::string&)>& say);

}  // namespace metroplex::run

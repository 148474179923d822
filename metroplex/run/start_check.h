// Checks a run without starting it: folders and files that it writes, its data, and the checkpoint or weights that it
// loads. Also checks that the run fits into memory if a launcher started its ranks.
#pragma once

#include <functional>
#include <string>

#include "comm/world.h"
#include "config/config.h"
#include "files/file_system.h"
#include "forecast/fit.h"
#include "run/trainer.h"

namespace metroplex::run {

// Throws the errors that starting the run would throw. Writes no files. Ignores data that cannot be read on this
// machine, because a dry run may not have the data.
void check_start(const config::Config& config, const TokenizerFacts& tokenizer, int64_t world_size,
                 files::FileSystem& disk);

struct StartFit {
  int64_t need = 0;      // largest memory requirement of a domain, in bytes
  int misfit_rank = -1;  // lowest rank whose domain is too small; -1: all fit
};

// Collective. Each rank passes the fit of its own domain; all ranks get the same result. The lowest rank that does
// not fit passes its `refusal()` to `say` before any rank returns. Otherwise the launcher could
// kill the reporting rank when another rank exits.
StartFit check_fit_together(const forecast::Fit& mine, const comm::World& world,
                            const std::function<std::string()>& refusal,
                            const std::function<void(const std::string&)>& say);

}  // namespace metroplex::run

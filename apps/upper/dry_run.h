// What `metroplex train` looks at before a rank exists: --dry-run, and whether the run fits where it will run.
#pragma once

#include <string>
#include <vector>

#include "apps/run_config.h"
#include "base/log.h"
#include "comm/world.h"
#include "preflight/fit.h"

namespace metroplex::apps {

// Options of train beside the config's own.
struct TrainFlags {
  bool dry_run = false, json = false, print_config = false, quiet = false;
  std::string device_memory;  // "80GiB"
  std::vector<OwnFlag> own_flags();
  // Puts --device-memory into the config; throws for what needs --dry-run.
  void take_into(config::Config& config) const;
};

// The whole of `train --dry-run`: prints, and returns the exit code.
int run_dry(const RunArguments& parsed, const config::Config& config, const TrainFlags& flags);

// The check at the start of a run. Without a launcher, or under our own, it is made where the ranks are started from;
// under another one every process looks at its own memory domain, and the ranks decide together.
class StartCheck {
 public:
  // Requires `config` resolved and checked. Throws base::Error("config") with the table of bytes and the settings
  // that hold less where the run cannot fit and nobody else has to hear of it.
  StartCheck(const config::Config& config, int64_t world_size, int64_t vocab_size, base::Log& log);

  // By every rank, ahead of everything else: decides with the others where that has to be, and tells on rank 0.
  // False: all ranks return, and behind them throw_refusal says so (thrown by a rank, it would be a failure of its
  // peers').
  bool on_rank(const comm::World& world);
  void throw_refusal() const;

 private:
  std::string refusal() const;

  base::Log& log_;
  preflight::FitRequest request_;
  preflight::Fit fit_;
  bool together_ = false;
  int refused_by_ = -1;
};

}  // namespace metroplex::apps

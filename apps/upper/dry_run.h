// Checks of `metroplex train` before any rank starts: --dry-run, and whether the run fits into memory.
#pragma once

#include <string>
#include <vector>

#include "apps/run_config.h"
#include "base/log.h"
#include "comm/world.h"
#include "forecast/fit.h"

namespace metroplex::apps {

// Options of train in addition to the config's keys.
struct TrainFlags {
  bool dry_run = false, json = false, schedules = false, print_config = false, quiet = false;
  std::string device_memory;  // "80GiB"
  std::vector<CommandFlag> own_flags();
  // Writes --device-memory into the config. Throws for options that require --dry-run.
  void take_into(config::Config& config) const;
};

// Runs `train --dry-run`; prints the result and returns the exit code.
int run_dry(const RunArguments& parsed, const config::Config& config, const TrainFlags& flags);

// The memory check at the start of a run. Without a launcher, or under our own, the starting process performs it.
// Under another launcher every process checks its own memory domain, and the ranks decide together.
class StartCheck {
 public:
  // Requires `config` resolved and checked. If the run cannot fit and no other rank must be notified, throws
  // base::Error("config") with the memory table and settings that use less memory.
  StartCheck(const config::Config& config, int64_t world_size, int64_t vocab_size, base::Log& log);

  // Collective; must be the first call on every rank. If required, the ranks decide together; rank 0 reports. If it
  // returns false, all ranks return, and throw_refusal must be called afterwards. An exception on a rank would be
  // reported as a failure of its peers.
  bool on_rank(const comm::World& world);
  void throw_refusal() const;

 private:
  std::string refusal() const;

  base::Log& log_;
  forecast::FitRequest request_;
  forecast::Fit fit_;
  bool together_ = false;
  int refused_by_ = -1;
};

}  // namespace metroplex::apps

// The configuration of a run from a command line, the same for train, eval, verify and generate: a YAML file,
// --section.key=value, Megatron's own flags and launch scripts, and the short forms --nproc, --backend, --tp, --pp,
// --vpp, --cp, --ep, --etp.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "config/validate.h"

namespace metroplex::apps {

struct RunArguments {
  config::Config config;  // not resolved yet
  bool help = false;      // --help [topic] was asked for
  std::string help_topic;
  std::vector<std::string> notes;    // what was read but does nothing, for the log
  int64_t script_ranks = 0;          // ranks that the launch script's launcher starts; 0: no launcher, or unknown
  std::string unknown_script_ranks;  // the script and its launcher, if the number of ranks is unknown
  // The same command line with what launch scripts said in their place, for the processes of the run: a script is
  // read once.
  std::vector<std::string> arguments;
};

// `own_flags` are options of the command itself with one value each ("--prompt"), or without one ("--json"); they are
// taken out into their values, the last one where a flag comes again, or all of them in order. `base_yaml` lies under
// everything else, as the config of a checkpoint; of its run section only the seed counts, and its parallel and
// memory sections are left out (a checkpoint's layout is not that of the reader). Throws base::Error("config") naming
// what it cannot use, with the nearest name.
struct OwnFlag {
  std::string name;
  std::string* value = nullptr;
  std::vector<std::string>* values = nullptr;
  bool* given = nullptr;  // of a flag without a value
};
RunArguments parse_run_arguments(const std::vector<std::string>& arguments,
                                 const std::vector<OwnFlag>& own_flags = {}, const std::string& base_yaml = "");

// Resolved and checked for `world_size` ranks; throws with every violation at once.
config::Config checked_config(const config::Config& config, int64_t world_size,
                              config::Use use = config::Use::training);

}  // namespace metroplex::apps

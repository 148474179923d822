// Parses the configuration of a run from a command line, for train, eval, verify and generate. It accepts a YAML
// file, --section.key=value, Megatron's flags and launch scripts, and the short forms --nproc, --backend, --tp, --pp,
// --vpp, --cp, --ep, --etp.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "config/validate.h"

namespace metroplex::apps {

struct RunArguments {
  config::Config config;  // not resolved
  bool help = false;      // --help [topic] is among the arguments
  std::string help_topic;
  std::vector<std::string> notes;    // log lines for options without effect
  int64_t script_ranks = 0;          // ranks that the script's launcher starts; 0: no launcher, or unknown
  std::string unknown_script_ranks;  // the script and its launcher, if the number of ranks is unknown
  // The command line for the processes of the run. Launch scripts are replaced by their parsed flags, because a
  // script is read only once.
  std::vector<std::string> arguments;
};

// `own_flags` are options of the command itself with one value ("--prompt") or without ("--json"). They are removed
// from the arguments; a repeated flag keeps its last value, or all values in order. `base_yaml`, for example the
// config of a checkpoint, has lower precedence than everything else. Only the seed of its run section is used, and
// its parallel and memory sections are ignored, because the reader may have another layout. Throws
// base::Error("config") with the invalid argument and the nearest valid name.
struct CommandFlag {
  std::string name;
  std::string* value = nullptr;
  std::vector<std::string>* values = nullptr;
  bool* given = nullptr;  // for a flag without a value
};
RunArguments parse_run_arguments(const std::vector<std::string>& arguments,
                                 const std::vector<CommandFlag>& own_flags = {}, const std::string& base_yaml = "");

// Returns the configuration resolved and checked for `world_size` ranks. Throws with all violations at once.
config::Config checked_config(const config::Config& config, int64_t world_size,
                              config::Use use = config::Use::training);

}  // namespace metroplex::apps

// Megatron's command line, translated: one table of flag -> assignments (megatron_table.cpp). A whole command line
// (kWholeCommand) also brings Megatron's defaults where they differ from ours, so that a run means the same here;
// single flags beside a YAML file (kSingleFlags) set what they say and nothing else.
#pragma once

#include <string>
#include <vector>

namespace metroplex::config {

enum class MegatronForm { kWholeCommand, kSingleFlags };

struct MegatronArgs {
  std::vector<std::string> assignments;     // "section.key=value", for Draft::assign or as load()'s overrides
  std::vector<std::string> not_known_yet;   // flags with their values: nothing here does this today
  std::vector<std::string> without_effect;  // known, and nothing to set: the program does so anyway
};

// Tokens are --flag value..., --flag=value and --flag. Throws base::Error("config") for a value that is missing or of
// the wrong type, for flags that contradict one another, for those that Megatron removed, and, in a whole command,
// for required ones that are missing.
MegatronArgs parse_megatron_args(const std::vector<std::string>& tokens,
                                 MegatronForm form = MegatronForm::kWholeCommand);

// A file that holds a whole command line or launch script (see shell_words.h).
MegatronArgs read_megatron_file(const std::string& path);

}  // namespace metroplex::config

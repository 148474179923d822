// Reads a launch script like those in Megatron's examples/*/train_*.sh by a trial run: bash runs the script with its
// arguments in the current folder, inside a filter of system calls (trial.h). No program starts and no file changes.
// Each start is recorded instead (launch_trial.h), and the training command is selected among the .py programs. A
// script whose flags depend on the output of a program is refused: a flag holds a mark, or differs between trials
// that assume other output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::megatron {

struct LaunchScript {
  std::string program;             // "pretrain_gpt.py"; empty for a file of flags alone
  std::vector<std::string> flags;  // the words behind it
  int64_t ranks = 0;               // ranks that its launcher starts, all nodes together; 0: no launcher, or unknown
  std::string unknown_ranks;       // the launcher and the option, if the number of ranks is unknown
  std::string note;                // the other .py commands of the script
  std::string folder;              // where it stood then
  int64_t arguments_named = 0;     // the highest of $1, $2, ... in its text
};

// Throws base::Error("config"): no such file, not a script, nothing started within 40 s, with what the script
// printed; flags that are not known, with the program and its line.
LaunchScript read_launch_script(const std::string& path, const std::vector<std::string>& arguments);

// A script that was read, as words for another process, which is not to read it again: it could find another seed.
std::vector<std::string> to_words(const LaunchScript& script);
// Takes them from `words` on from `at`, and moves `at` behind them. Throws base::Error("config") for other words.
LaunchScript from_words(const std::vector<std::string>& words, size_t& at);

}  // namespace metroplex::megatron

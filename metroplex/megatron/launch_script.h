// A launch script of Megatron's (examples/*/train_*.sh), read by a trial run: bash runs it, with its arguments, in
// the folder we stand in, behind a filter of system calls (trial.h): no program is started and no file written.
// Each start is written down instead (launch_trial.h); the longest one of a .py program is the training command.
// Where its flags hold what a program would have printed, they cannot be known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::megatron {

struct LaunchScript {
  std::string program;             // "pretrain_gpt.py"; empty for a file of flags alone
  std::vector<std::string> flags;  // the words behind it
  int64_t ranks = 0;               // what its launcher would start, all nodes together; 0: it does not say
  std::string folder;              // where it stood then
  int64_t arguments_named = 0;     // the highest of $1, $2, ... in its text
};

// Throws base::Error("config"): no such file, not a script, nothing started within 20 s, with what the script
// printed; flags that are not known, with the program and its line.
LaunchScript read_launch_script(const std::string& path, const std::vector<std::string>& arguments);

// A script that was read, as words for another process, which is not to read it again: it could find another seed.
std::vector<std::string> to_words(const LaunchScript& script);
// Takes them from `words` on from `at`, and moves `at` behind them. Throws base::Error("config") for other words.
LaunchScript from_words(const std::vector<std::string>& words, size_t& at);

}  // namespace metroplex::megatron

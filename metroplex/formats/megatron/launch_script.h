// Reads a launch script like those in Megatron's examples/*/train_*.sh by a trial run. Bash runs the script with
// its arguments in the current folder, inside a system call filter (trial.h). No program starts and no file
// changes. Each start is recorded instead (launch_trial.h), and the training command is selected among the .py
// programs. A script is refused if its flags depend on a program's output: a flag contains a mark, or differs
// between trials that assume different output.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::megatron {

struct LaunchScript {
  std::string program;             // "pretrain_gpt.py"; empty for a file of flags alone
  std::vector<std::string> flags;  // the words after it
  int64_t ranks = 0;               // ranks that its launcher starts on all nodes; 0: no launcher, or unknown
  std::string unknown_ranks;       // launcher and option of an unknown number of ranks
  std::string note;                // the other .py commands of the script
  std::string folder;              // working directory of the command
  int64_t arguments_named = 0;     // highest of $1, $2, ... in the script's text
};

inline constexpr std::chrono::milliseconds kAllTrials = std::chrono::seconds(28);
// Throws base::Error("config") for a missing file, a file that is no script, and a script that starts nothing within
// 40 s, with the script's output. For unknown flags, the message has the program and its line. `all_trials` limits
// the trials of branches: no further one starts later.
LaunchScript read_launch_script(const std::string& path, const std::vector<std::string>& arguments,
                                std::chrono::milliseconds all_trials = kAllTrials);

// Serializes a script for another process. A second trial run could see another random seed.
std::vector<std::string> to_words(const LaunchScript& script);
// Parses the words from index `at` and advances `at` past them. Throws base::Error("config") for other words.
LaunchScript from_words(const std::vector<std::string>& words, size_t& at);

}  // namespace metroplex::megatron

// The table of all commands, and the commands without tensors. A new command needs a file and lines here and in
// commands.cpp. One with tensors has lines in commands.cpp and in upper/torch_program.cpp.
#pragma once

#include <span>

#include "apps/command.h"

namespace metroplex::apps {

// In the order of --help; commands with tensors have kNeedsTorch.
std::span<const Command> commands();

int run_preprocess(const std::vector<std::string>& arguments);
int run_tokenizer(const std::vector<std::string>& arguments);
int run_ranks(const std::vector<std::string>& arguments);
int run_schedule(const std::vector<std::string>& arguments);
int run_sequence(const std::vector<std::string>& arguments);  // run_schedule with --sequence
int run_hybrid(const std::vector<std::string>& arguments);    // run_schedule with --hybrid
int run_experts(const std::vector<std::string>& arguments);
int run_report(const std::vector<std::string>& arguments);
int run_plot(const std::vector<std::string>& arguments);
int run_convert(const std::vector<std::string>& arguments);
int run_inspect(const std::vector<std::string>& arguments);

}  // namespace metroplex::apps

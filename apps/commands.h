// The table of all commands, and those without tensors. A new one: its file, its line here and in commands.cpp; one
// with tensors has its line in commands.cpp and in upper/torch_program.cpp.
#pragma once

#include <span>

#include "apps/command.h"

namespace metroplex::apps {

// In the order of --help; what needs tensors has kNeedsTorch.
std::span<const Command> commands();

int run_preprocess(const std::vector<std::string>& arguments);
int run_tokenizer(const std::vector<std::string>& arguments);
int run_ranks(const std::vector<std::string>& arguments);
int run_schedule(const std::vector<std::string>& arguments);
int run_sequence(const std::vector<std::string>& arguments);  // what run_schedule does with --sequence
int run_hybrid(const std::vector<std::string>& arguments);    // and with --hybrid
int run_experts(const std::vector<std::string>& arguments);
int run_convert(const std::vector<std::string>& arguments);
int run_inspect(const std::vector<std::string>& arguments);

}  // namespace metroplex::apps

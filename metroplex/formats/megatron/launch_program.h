// The .py program, or module of python -m, that a recorded command starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace metroplex::megatron {

struct Program {
  std::string name;  // "pretrain_gpt.py", for a module too
  size_t at = 0;     // index of its word; its flags are the words after it
};

// Returns nullopt if the command starts neither. A module counts only if it is a training program.
std::optional<Program> find_program(const std::vector<std::string>& words);

// 2 for training programs, 0 for evaluations and tools, 1 for others.
int program_rank(const std::string& path);

}  // namespace metroplex::megatron

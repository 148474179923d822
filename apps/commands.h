// The commands without tensors. A new one: its file, its line here and in main.cpp's table.
#pragma once

#include "command.h"

namespace metroplex::apps {

int run_preprocess(const std::vector<std::string>& arguments);
int run_tokenizer(const std::vector<std::string>& arguments);
int run_ranks(const std::vector<std::string>& arguments);
int run_schedule(const std::vector<std::string>& arguments);
int run_inspect(const std::vector<std::string>& arguments);

}  // namespace metroplex::apps

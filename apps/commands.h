// Every command of the binary. A new one: its file, its line here and in main.cpp's table.
#pragma once

#include "command.h"

namespace metroplex::apps {

int run_train(const std::vector<std::string>& arguments);
int run_eval(const std::vector<std::string>& arguments);
int run_generate(const std::vector<std::string>& arguments);
int run_verify(const std::vector<std::string>& arguments);
int run_preprocess(const std::vector<std::string>& arguments);
int run_tokenizer(const std::vector<std::string>& arguments);
int run_ranks(const std::vector<std::string>& arguments);
int run_schedule(const std::vector<std::string>& arguments);
int run_inspect(const std::vector<std::string>& arguments);

// argv of this process again, for child processes.
std::vector<std::string> command_line(const std::string& command, const std::vector<std::string>& arguments);

}  // namespace metroplex::apps

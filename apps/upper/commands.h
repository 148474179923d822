// Commands that use tensors (libtorch). A new command needs a file and lines here, in torch_program.cpp and in
// ../commands.cpp.
#pragma once

#include "apps/command.h"

namespace metroplex::apps {

int run_train(const std::vector<std::string>& arguments);
int run_eval(const std::vector<std::string>& arguments);
int run_generate(const std::vector<std::string>& arguments);
int run_plan(const std::vector<std::string>& arguments);
int run_calibrate(const std::vector<std::string>& arguments);
int run_verify(const std::vector<std::string>& arguments);

}  // namespace metroplex::apps

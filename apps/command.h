// One file a command: apps/<name>.cpp defines run_<name>, apps/main.cpp holds the table and the only exit.
#pragma once

#include <string>
#include <vector>

namespace metroplex::apps {

// Arguments without the program and command names. Returns the process's exit code; throws base::Error.
using RunCommand = int (*)(const std::vector<std::string>& arguments);

struct Command {
  const char* name;
  const char* summary;
  RunCommand run;
};

}  // namespace metroplex::apps

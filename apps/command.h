// One file a command: apps/<name>.cpp, or apps/upper/<name>.cpp where it needs tensors, defines run_<name>.
#pragma once

#include <string>
#include <vector>

namespace metroplex::apps {

// Arguments without the program and command names. Returns the process's exit code; throws base::Error.
using RunCommand = int (*)(const std::vector<std::string>& arguments);
inline constexpr RunCommand kNeedsTorch = nullptr;

struct Command {
  const char* name;
  const char* summary;
  RunCommand run;
};

}  // namespace metroplex::apps

// metroplex-torch: runs the commands with tensors.
#include <vector>

#include "apps/commands.h"
#include "program.h"
#include "upper/commands.h"
#include "upper/launch.h"

namespace metroplex::apps {
namespace {

struct TensorCommand {
  const char* name;
  RunCommand run;
};

constexpr TensorCommand kTensorCommands[] = {{"train", run_train},       {"eval", run_eval},
                                             {"generate", run_generate}, {"verify", run_verify},
                                             {"plan", run_plan},         {"calibrate", run_calibrate}};

std::vector<Command> add_torch_commands() {
  std::vector<Command> found;
  for (Command command : commands()) {
    for (const TensorCommand& known : kTensorCommands) {
      if (std::string(command.name) != known.name) continue;
      command.run = known.run;
      found.push_back(command);
    }
  }
  return found;
}

}  // namespace

Program this_program() {
  static const std::vector<Command> commands = add_torch_commands();
  return {commands, message_of, tell_ranks};
}

}  // namespace metroplex::apps

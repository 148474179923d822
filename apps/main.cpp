#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include <malloc.h>

#include "commands.h"
#include "launch.h"

namespace metroplex::apps {
namespace {

constexpr Command kCommands[] = {
    {"train", "train a model", run_train},
    {"eval", "loss and perplexity of a checkpoint", run_eval},
    {"generate", "continue a text with a checkpoint", run_generate},
    {"verify", "prove that a config gives the same result on its layout as on one rank", run_verify},
    {"preprocess", "text or jsonl -> indexed dataset", run_preprocess},
    {"tokenizer", "train, use and look at tokenizers", run_tokenizer},
    {"ranks", "draw who is where: the rank map and its groups", run_ranks},
    {"schedule", "draw a pipeline schedule", run_schedule},
    {"inspect", "what is in a checkpoint or dataset; checksums; compare two checkpoints", run_inspect},
};

void print_usage(std::ostream& out) {
  out << "metroplex: training of large Transformers in any parallel layout\n\nUsage: metroplex COMMAND [options]; "
         "metroplex COMMAND --help\n\n";
  for (const Command& command : kCommands) {
    out << "  " << command.name << std::string(14 - std::strlen(command.name), ' ') << command.summary << "\n";
  }
}

// Activations come and go every step: giving their pages back to the system and faulting them in again costs more
// than the arithmetic on them.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
}

int run(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "--help";
  if (name == "--help" || name == "-h" || name == "help") {
    print_usage(std::cout);
    return kExitOk;
  }
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run({argv + 2, argv + argc});
  }
  std::cerr << "metroplex: there is no command '" << name << "'\n\n";
  print_usage(std::cerr);
  return kExitConfig;
}

}  // namespace

std::vector<std::string> command_line(const std::string& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> line{"/proc/self/exe", command};
  line.insert(line.end(), arguments.begin(), arguments.end());
  return line;
}

}  // namespace metroplex::apps

int main(int argc, char** argv) {
  metroplex::apps::keep_freed_memory();
  try {
    return metroplex::apps::run(argc, argv);
  } catch (const std::exception& error) {
    std::cout.flush();
    const bool trace = std::find(argv, argv + argc, std::string("--trace")) != argv + argc;
    std::cerr << "metroplex: " << (trace ? metroplex::apps::trace_of(error) : metroplex::apps::message_of(error))
              << "\n";
    // Peers wait to hear of a failure: libtorch's own teardown would keep them a second or more.
    std::_Exit(metroplex::apps::exit_code_of(error));
  }
}

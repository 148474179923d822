// metroplex-torch: what `metroplex` becomes for a command with tensors.
#include "program.h"
#include "upper/commands.h"
#include "upper/launch.h"

namespace metroplex::apps {
namespace {

constexpr Command kCommands[] = {
    {"train", "train a model", run_train},
    {"eval", "loss and perplexity of a checkpoint", run_eval},
    {"generate", "continue a text with a checkpoint", run_generate},
    {"verify", "prove that a config gives the same result on its layout as on one rank", run_verify},
};

}  // namespace
}  // namespace metroplex::apps

int main(int argc, char** argv) {
  return metroplex::apps::run_program({metroplex::apps::kCommands, metroplex::apps::message_of}, argc, argv);
}

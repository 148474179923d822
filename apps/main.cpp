// metroplex: the table of all commands.
#include "commands.h"
#include "program.h"

namespace metroplex::apps {
namespace {

constexpr Command kCommands[] = {
    {"train", "train a model", kNeedsTorch},
    {"eval", "loss and perplexity of a checkpoint", kNeedsTorch},
    {"generate", "continue a text with a checkpoint", kNeedsTorch},
    {"verify", "prove that a config gives the same result on its layout as on one rank", kNeedsTorch},
    {"preprocess", "text or jsonl -> indexed dataset", run_preprocess},
    {"tokenizer", "train, use and look at tokenizers", run_tokenizer},
    {"ranks", "draw who is where: the rank map and its groups", run_ranks},
    {"schedule", "draw a pipeline schedule", run_schedule},
    {"inspect", "what is in a checkpoint or dataset; checksums; compare two checkpoints", run_inspect},
};

std::string message_of(const std::exception& error, bool) { return error.what(); }

}  // namespace
}  // namespace metroplex::apps

int main(int argc, char** argv) {
  return metroplex::apps::run_program({metroplex::apps::kCommands, metroplex::apps::message_of}, argc, argv);
}

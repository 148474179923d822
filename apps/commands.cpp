#include "commands.h"

namespace metroplex::apps {

constexpr Command kCommands[] = {
    {"train", "train a model", kNeedsTorch},
    {"eval", "loss and perplexity of a checkpoint", kNeedsTorch},
    {"generate", "continue a text with a checkpoint", kNeedsTorch},
    {"plan", "memory, time and cost of a run; search for the best layouts", kNeedsTorch},
    {"calibrate", "measure this machine for plan", kNeedsTorch},
    {"verify", "prove that a config gives the same result on its layout as on one rank", kNeedsTorch},
    {"preprocess", "text or jsonl -> indexed dataset", run_preprocess},
    {"tokenizer", "train, use and inspect tokenizers", run_tokenizer},
    {"ranks", "draw the rank map of a layout and its groups", run_ranks},
    {"schedule", "draw a pipeline schedule, or how ranks share a sequence or a batch", run_schedule},
    {"experts", "draw how a run spread its tokens over its experts", run_experts},
    {"report", "write an HTML page about runs: curves, memory, time, experts, layout, config", run_report},
    {"plot", "draw curves of runs in the terminal", run_plot},
    {"convert", "checkpoint -> Hugging Face directory or PEFT adapters; directory -> checkpoint", run_convert},
    {"inspect", "show a checkpoint or dataset; verify checksums; compare two checkpoints", run_inspect},
};

std::span<const Command> commands() { return kCommands; }

}  // namespace metroplex::apps

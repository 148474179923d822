// metroplex generate: a checkpoint continues a text. The model and its tokenizer come from the checkpoint's own
// config.
#include "upper/commands.h"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "files/file_system.h"
#include "numbers.h"
#include "program.h"
#include "run_config.h"
#include "train/generate.h"
#include "train/state.h"
#include "upper/launch.h"
#include "upper/run_tokenizer.h"
#include "upper/saved_run.h"

namespace metroplex::apps {
namespace {

constexpr const char* kGenerateUsage =
    R"(Usage: metroplex generate --load DIR --prompt TEXT [options] [--section.key=value ...]

  --model.from DIR      a Hugging Face directory, instead of --load
  --load DIR            a checkpoint, or a folder of them (the newest is taken, or that of --ckpt-step N); its tokenizer
                        comes with it
  --prompt TEXT         what to continue; given again, each is continued by itself, in order
  --prompt-file FILE    reads a prompt from a file; may be given again too
  --max-new-tokens 64   length of the continuation
  --temperature 1       0 is greedy
  --top-k 0             keep the k most likely tokens; 0: all
  --top-p 0             keep the most likely tokens up to this probability; 0: all
  --seed 1234           the same seed gives the same text, on any layout

  metroplex generate --load checkpoints/llama_tiny --prompt "#include <" --temperature 0.8 --top-k 40
  metroplex generate --load DIR --prompt "..." --nproc 4 --parallel.tensor_model_parallel_size=2 --parallel.pipeline_model_parallel_size=2
)";

std::string read_file(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  MPX_CHECK(stream.good(), "data", "cannot read --prompt-file ", file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// What the checkpoint was trained with, on one rank unless the command line says otherwise.
config::Config generation_config(const RunArguments& parsed, const std::string& load) {
  config::Config config = parsed.config;
  config.checkpoint = {};
  config.checkpoint.load = load;
  config.checkpoint.exit_on_missing_checkpoint = !load.empty();
  config.parallel.sequence_parallel = false;
  config.train.global_batch_size = 0;
  config.train.rampup_batch_size.clear();
  config.train.step_batch_size_schedule.clear();
  config.optim.override_opt_param_scheduler = true;
  config.optim.use_checkpoint_opt_param_scheduler = false;
  config.data.data_path.clear();
  config.data.train_data_path.clear();
  config.data.valid_data_path.clear();
  config.data.test_data_path.clear();
  config.data.mock_data = true;
  return config;
}

// The values of the options.
struct GenerateFlags {
  std::string max_new = "64", temperature = "1", top_k = "0", top_p = "0", seed = "1234";
  std::vector<std::string> prompts, prompt_files;
  std::vector<OwnFlag> own_flags() {
    return {{"--prompt", nullptr, &prompts},
            {"--prompt-file", nullptr, &prompt_files},
            {"--max-new-tokens", &max_new},
            {"--temperature", &temperature},
            {"--top-k", &top_k},
            {"--top-p", &top_p},
            {"--seed", &seed}};
  }
};

struct GenerateCommand {
  RunArguments parsed;
  SavedRun saved;
  config::Config config;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::shared_ptr<const text::TokenizerFiles> files;
  std::vector<std::vector<int64_t>> texts;
  train::GenerateOptions options;
};

std::vector<std::vector<int64_t>> encoded(const GenerateFlags& flags, const text::Tokenizer& tokenizer) {
  std::vector<std::string> prompts = flags.prompts;
  for (const std::string& file : flags.prompt_files) prompts.push_back(read_file(file));
  if (prompts.empty()) prompts.emplace_back();
  std::vector<std::vector<int64_t>> texts;
  for (const std::string& prompt : prompts) {
    const std::vector<int32_t> ids = tokenizer.encode(prompt);
    std::vector<int64_t>& tokens = texts.emplace_back(ids.begin(), ids.end());
    if (tokens.empty() && tokenizer.eod()) tokens.push_back(*tokenizer.eod());  // an empty prompt starts a document
  }
  return texts;
}

// `first`: parsed to find what to load; the checkpoint's config comes before the options.
GenerateCommand generate_command(const RunArguments& first) {
  const config::Checkpoint& asked = first.config.checkpoint;
  GenerateCommand command;
  command.saved = run_to_read(first.config, "the checkpoint to generate with");
  GenerateFlags flags;
  command.parsed = parse_run_arguments(first.arguments, flags.own_flags(), command.saved.config_yaml);
  config::Config& config = command.config = generation_config(command.parsed, command.saved.directory);
  config.checkpoint.allow = asked.allow;
  if (!command.saved.directory.empty()) config.model.from.clear();
  if (!names_tokenizer(first.config.data)) use_carried_tokenizer(command.saved, config.data);

  command.tokenizer = load_run_tokenizer(config.data);
  MPX_CHECK(command.tokenizer != nullptr, "config",
            "the checkpoint names no tokenizer; give --data.tokenizer_type and --data.tokenizer_model");
  command.files = run_tokenizer_files(config.data);
  command.texts = encoded(flags, *command.tokenizer);

  train::GenerateOptions& options = command.options;
  options.max_new_tokens = whole_number("--max-new-tokens", flags.max_new);
  options.temperature = real_number("--temperature", flags.temperature);
  options.top_k = whole_number("--top-k", flags.top_k);
  options.top_p = real_number("--top-p", flags.top_p);
  options.seed = static_cast<uint64_t>(whole_number("--seed", flags.seed));
  if (command.tokenizer->eod()) options.stop_token = *command.tokenizer->eod();
  MPX_CHECK(config.parallel.cp() == 1, "config", "parallel.context_parallel_size = ", config.parallel.cp(),
            ": a rank that generates holds whole sequences; set it to 1");
  config = checked_config(config, planned_world_size(config.run), config::Use::evaluation);
  return command;
}

}  // namespace

int run_generate(const std::vector<std::string>& arguments) {
  GenerateFlags flags;
  RunArguments first;
  before_ranks([&] { first = parse_run_arguments(arguments, flags.own_flags()); });
  if (first.help) {
    std::cout << kGenerateUsage;
    return kExitOk;
  }
  GenerateCommand command;
  before_ranks([&] { command = generate_command(first); });
  const std::vector<std::string> line = command_line("generate", command.parsed.arguments);
  return launch_ranks(command.config, line, [&](const comm::World& world) {
    const SavedRun& saved = command.saved;
    const auto assembly =
        train::assemble(command.config, world, command.config.model.vocab_size, /*forward_only=*/true,
                        models::build_stage, nullptr, train::FirstValues::loaded);
    assembly->tokenizer = command.files;
    files::PosixFileSystem disk;
    train::LoadOutcome outcome;
    if (saved.directory.empty()) {
      train::load_weights_of_directory(*assembly, disk);
    } else {
      outcome = train::load_state(*assembly, saved.directory, disk);
    }
    if (world.rank() == 0) {
      for (const std::string& problem : saved.problems) std::cerr << "warning: " << problem << "\n";
      if (!outcome.notes.empty()) std::cerr << "warning: " << outcome.notes << "\n";
    }
    for (const std::vector<int64_t>& tokens : command.texts) {
      const std::vector<int64_t> made = train::generate(*assembly, tokens, command.options);
      if (world.rank() != 0) continue;
      std::vector<int32_t> all(tokens.begin(), tokens.end());
      all.insert(all.end(), made.begin(), made.end());
      std::cout << command.tokenizer->decode(all) << std::endl;  // it may hold a NUL
    }
  });
}

}  // namespace metroplex::apps

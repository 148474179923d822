// metroplex train: runs one training job.
#include "upper/commands.h"

#include <iostream>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "comm/launch.h"
#include "config/fields.h"
#include "config/load.h"
#include "files/file_system.h"
#include "program.h"
#include "run_config.h"
#include "run/trainer.h"
#include "upper/console_log.h"
#include "upper/dry_run.h"
#include "upper/launch.h"
#include "upper/run_tokenizer.h"
#include "upper/saved_run.h"
#include "upper/stop_signal.h"

namespace metroplex::apps {
namespace {

constexpr const char* kTrainUsage =
    R"(Usage: metroplex train [CONFIG.yaml ...] [--nproc N] [--tp N] [--pp N] [--backend threads|gloo|nccl]
                       [--section.key=value ...]

Trains a model. Later settings win: files first, then options. Megatron-LM's own flags are understood too
(--tensor-model-parallel-size 2 --num-layers 24 ...), and --from-megatron-args FILE [ARGUMENTS] reads a whole launch
script with its arguments: bash runs it in a sandbox that only starts tools that read and write nothing
(docs/config.md).

  metroplex train examples/llama_tiny.yaml --nproc 8
  torchrun --no-python --nproc-per-node 8 metroplex train run.yaml
  metroplex train run.yaml --nproc 8 --backend nccl          8 GPUs of this machine (run.device: see --help run)
  metroplex train run.yaml --nproc 16384 --run.device=cuda --device-memory 80GiB --dry-run     the resources it needs
  metroplex train --help parallel          the settings of one section; --help all for every section

--print-config prints the configuration with all derived values, and exits; a run that saves writes it to run.yaml in
its folder. --quiet prints only warnings and errors on the console.

--dry-run (with --print-config, after the configuration) describes the run: parameters, operations, required and
available bytes of every pipeline rank, bubble, tokens and epochs. --json prints JSON. --schedules adds bubble and
memory of the run with each pipeline schedule. It exits with 0, with 2 if the run cannot fit, or with the code of an
error at its start (save folder, checkpoint, directory, data). --device-memory SIZE (memory.device_memory_gib) sets
the memory of a GPU, or of a machine. A run that cannot fit is refused before it starts.

SIGTERM, SIGINT, SIGHUP and SIGUSR1 stop a run after the step and save it; a second signal ends it at once. A signal
that is ignored when the run starts (SIGHUP under nohup) stays ignored.

Exit codes: 0 finished, 2 configuration, or out of memory, 3 data or checkpoint, 4 another rank failed, 5 NaN or Inf,
6 the last save failed, or checkpoint.export_hf could not be written, 16 stopped after saving, by a signal or by
train.exit_duration_in_mins (start it again to continue), 1 a bug in metroplex, 128 + n a rank killed by signal n.

)";

void print_help(const std::string& topic) {
  if (!topic.empty()) {
    std::cout << config::help(topic);
    return;
  }
  std::cout << kTrainUsage << "Sections:";
  for (const config::SectionHelp& section : config::sections()) std::cout << " " << section.name;
  std::cout << "\n";
}

// Under our own launcher the launcher prints for all ranks, else the first rank does.
StopOptions stop_options(const config::Config& config, int rank) {
  const auto launch = comm::launch_from_environment();
  StopOptions options;
  options.saves = !config.checkpoint.save.empty();
  options.launcher_fd = launch ? launch->cause_fd : -1;
  options.speaks = options.launcher_fd < 0 && (!launch || rank == 0);
  return options;
}

// Applies the command's options to the config and returns the number of ranks.
int64_t take_command_line(const RunArguments& parsed, const TrainFlags& flags, config::Config& config) {
  take_script_ranks(config.run, parsed);
  flags.take_into(config);
  return planned_world_size(config.run);
}

int run_without_ranks(const RunArguments& parsed, const TrainFlags& flags) {
  config::Config config = parsed.config;
  const int64_t world_size = take_command_line(parsed, flags, config);
  if (flags.dry_run) return run_dry(parsed, config, flags);
  tokenizer_facts(config);
  config = checked_with_epochs(config, world_size);
  if (requested_placing(config.run, world_size).rank != 0) return kExitOk;
  ConsoleLog log(false);
  for (const std::string& note : parsed.notes) log.warn(note);
  std::cout << config::dump(config);
  return kExitOk;
}

std::string stopped_exit_line(const run::RunSummary& summary) {
  std::string line = " stopped on request after iteration " + std::to_string(summary.iteration);
  if (!summary.last_checkpoint.empty()) line += "; start again with checkpoint.load = " + summary.last_checkpoint;
  return line;
}

}  // namespace

int run_train(const std::vector<std::string>& arguments) {
  MPX_CHECK(!arguments.empty(), "config",
            "train needs a configuration: a YAML file, options, or Megatron's flags; see metroplex train --help");
  TrainFlags flags;
  RunArguments parsed;
  before_ranks([&] { parsed = parse_run_arguments(arguments, flags.own_flags()); });
  if (parsed.help) {
    print_help(parsed.help_topic);
    return kExitOk;
  }
  if (flags.dry_run || flags.print_config) return run_without_ranks(parsed, flags);

  config::Config config = parsed.config;
  run::TokenizerFacts tokenizer;
  std::optional<ConsoleLog> console;
  std::optional<StartCheck> start;
  before_ranks([&] {
    const int64_t world_size = take_command_line(parsed, flags, config);
    tokenizer = tokenizer_facts(config);
    config = checked_with_epochs(config, world_size);
    console.emplace(config.train.progress, flags.quiet);
    start.emplace(config, world_size, tokenizer.vocab_size, *console);
  });
  ConsoleLog& log = *console;
  std::once_flag starts;
  run::RunSummary summary;  // of rank 0
  std::mutex mutex;
  const int code = launch_ranks(config, command_line("train", parsed.arguments), [&](const comm::World& world) {
    // Handles signals from the first rank's start on; before that there is no state to save.
    std::call_once(starts, [&] { take_stop_signals(stop_options(config, world.rank())); });
    if (world.rank() == 0) {
      for (const std::string& note : parsed.notes) log.warn(note);
    }
    if (!start->on_rank(world)) return;
    run::TrainerEnvironment environment;
    environment.log = &log;
    environment.disk = std::make_shared<files::PosixFileSystem>();
    environment.stop_requested = stop_requested;
    environment.progress = [&log](int64_t done, int64_t all) { log.progress(done, all); };
    const run::RunSummary mine = run::run_training(config, world, tokenizer, environment);
    if (world.rank() == 0 && mine.ending == run::Ending::stopped) log.info(stopped_exit_line(mine));
    if (!mine.on_disk.empty() && mine.last_save_failed) std::cerr << "metroplex: " << mine.on_disk << std::endl;
    const std::lock_guard lock(mutex);
    if (world.rank() == 0 || summary.iteration == 0) summary = mine;
  });
  start->throw_refusal();
  if (code != kExitOk) return code;
  if (summary.last_save_failed || summary.export_failed) return kExitUnsaved;
  return summary.ending == run::Ending::stopped ? kExitStopped : kExitOk;
}

namespace {

struct EvalCommand {
  RunArguments parsed;
  config::Config config;
  run::TokenizerFacts tokenizer;
};

EvalCommand eval_command(const RunArguments& first) {
  const config::Checkpoint& from = first.config.checkpoint;
  EvalCommand command;
  const SavedRun saved = find_saved_run(first.config, "the checkpoint to evaluate");
  const bool weights_alone = saved.directory.empty();
  command.parsed = parse_run_arguments(first.arguments, {}, saved.config_yaml);
  config::Config& config = command.config = command.parsed.config;
  if (!weights_alone) config.model.from.clear();
  if (!names_tokenizer(first.config.data)) use_saved_tokenizer(saved, config.data);
  config.checkpoint.load = from.load;
  config.checkpoint.ckpt_step = from.ckpt_step;
  config.checkpoint.exit_on_missing_checkpoint = !weights_alone;
  config.checkpoint.save.clear();
  config.train.metrics_file = first.config.train.metrics_file;  // not the training run's file
  config.train.tensorboard_dir = first.config.train.tensorboard_dir;
  take_script_ranks(config.run, command.parsed);
  command.tokenizer = tokenizer_facts(config);
  config = checked_config(config, planned_world_size(config.run), config::Use::evaluation);
  MPX_CHECK(config.train.eval_iters > 0, "config",
            "train.eval_iters = 0, from the run or the command line: no batch would be evaluated; give "
            "--train.eval_iters=N for N batches of each set");
  return command;
}

}  // namespace

int run_eval(const std::vector<std::string>& arguments) {
  RunArguments first;
  before_ranks([&] { first = parse_run_arguments(arguments); });
  if (first.help) {
    std::cout << "Usage: metroplex eval --load DIR [CONFIG.yaml] [as for train]\n\n"
                 "Loss and perplexity of a checkpoint on the validation and test sets, train.eval_iters batches of\n"
                 "train.global_batch_size each. Model, data and batches are those of the checkpoint\n"
                 "unless a file or an option sets them. Any layout can evaluate any checkpoint.\n\n"
                 "  metroplex eval --load checkpoints --nproc 4 --parallel.tensor_model_parallel_size=2\n";
    return kExitOk;
  }
  EvalCommand command;
  before_ranks([&] { command = eval_command(first); });
  ConsoleLog log(false);
  const std::vector<std::string> line = command_line("eval", command.parsed.arguments);
  return launch_ranks(command.config, line, [&](const comm::World& world) {
    if (world.rank() == 0) {
      for (const std::string& note : command.parsed.notes) log.warn(note);
    }
    run::TrainerEnvironment environment;
    environment.log = &log;
    environment.disk = std::make_shared<files::PosixFileSystem>();
    run::run_evaluation(command.config, world, command.tokenizer, environment);
  });
}

}  // namespace metroplex::apps

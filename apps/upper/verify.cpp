// metroplex verify: compares the user's config on its layout with the same config on one rank, in float64.
#include "upper/commands.h"

#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "config/validate.h"
#include "numbers.h"
#include "program.h"
#include "run_config.h"
#include "verify/verify.h"
#include "upper/console_log.h"
#include "upper/launch.h"
#include "upper/run_tokenizer.h"
#include "upper/verify_graphs.h"
#include "upper/verify_precision.h"

namespace metroplex::apps {

int run_verify(const std::vector<std::string>& arguments) {
  std::string steps_text = "3", vocab_text = "0";
  bool graphs = false, precision = false;
  const RunArguments parsed = parse_run_arguments(arguments, {{"--steps", &steps_text},
                                                              {"--vocab-size", &vocab_text},
                                                              {"--cuda-graphs", nullptr, nullptr, &graphs},
                                                              {"--precision", nullptr, nullptr, &precision}});
  if (parsed.help) {
    std::cout
        << "Usage: metroplex verify CONFIG.yaml [--nproc N] [--steps 3] [--vocab-size V] [--section.key=value "
           "...]\n\n"
           "Trains the config's model for a few steps on synthetic data in float64, on its own layout (ranks as "
           "threads)\n"
           "and on one rank, and compares losses to 1e-12 relative and parameters to 1e-10. Settings that are not\n"
           "compared (schedules, formats) are printed. Exits with 0 if they agree, with 5 if not, and with 2 for "
           "one\n"
           "rank, or if the result depends on the layout (a global loss of experts, a capacity, signs of gradients\n"
           "that are zero).\n"
           "Runs on the CPU; with --run.device=cuda, all ranks compute on one GPU. --vocab-size replaces a\n"
           "model.vocab_size of 0, so that the tokenizer, which would provide it, is not needed.\n\n"
           "--cuda-graphs checks instead whether the steps can be captured (train.cuda_graph_impl: full_iteration, "
           "or\n"
           "the parts that the config names). It records some steps on the CPU on different data, and prints every\n"
           "error of a replay with segment and operator. Exits with 0 without a finding, else with 5.\n\n"
           "--precision runs one step on one rank in the config's formats, without 8-bit products, and in float64, "
           "from\n"
           "the same weights, and prints the errors of hidden states and gradients of each layer.\n";
    return kExitOk;
  }
  MPX_CHECK(!graphs || !precision, "config", "--cuda-graphs and --precision are different checks; give one of them");
  ConsoleLog log(false);
  for (const std::string& note : parsed.notes) log.warn(note);
  const int64_t steps = whole_number("--steps", steps_text, 1);
  config::Config config = parsed.config;
  take_script_ranks(config.run, parsed);
  config.run.backend = config::Backend::threads;
  if (config.run.device == config::Device::automatic)
    config.run.device = config::Device::cpu;  // both runs use the same device
  const int64_t vocab_size = whole_number("--vocab-size", vocab_text);
  if (config.model.vocab_size == 0) config.model.vocab_size = vocab_size;
  if (config.model.vocab_size == 0) tokenizer_facts(config);
  if (graphs) {
    config.run.device = config::Device::cpu;
    return verify_graphs(config);
  }
  if (precision) return verify_precision(config);
  const int64_t world_size = planned_world_size(config.run);
  MPX_CHECK(world_size > 1, "config", "run.nproc = ", config.run.nproc,
            ": verify compares a layout of several ranks with one rank, so nothing was compared; give --nproc N");
  const config::Config requested = verify::verification_config(config, steps);
  const config::Config checked = checked_config(requested, world_size);
  const std::vector<std::string> others =
      verify::dropped_settings(config, verify::with_running_batch(requested, world_size));
  config = verify::with_running_batch(checked, world_size);
  const std::vector<std::string> dependent = verify::layout_dependent(config, world_size);
  std::string reasons;
  for (const std::string& line : dependent) reasons += "\n  " + line;
  MPX_CHECK(dependent.empty(), "config", "these settings depend on the layout, so nothing was compared:", reasons);
  if (!others.empty()) std::printf("not compared:\n");
  for (const std::string& line : others) std::printf("  %s\n", line.c_str());

  verify::LayoutRun on_layout, on_one_rank;
  const auto keep = [&](verify::LayoutRun& into, const config::Config& config) {
    return [&into, &config, steps](const comm::World& world) {
      verify::LayoutRun mine = verify::run_layout(config, world, config.model.vocab_size, steps);
      if (world.rank() == 0) into = std::move(mine);
    };
  };
  launch_ranks(config, {}, keep(on_layout, config));
  const config::Config reference = checked_config(verify::single_rank_config(config), 1);
  launch_ranks(reference, {}, keep(on_one_rank, reference));

  const verify::LayoutDifference difference = verify::compare_runs(on_layout, on_one_rank);
  for (size_t i = 0; i < on_layout.losses.size(); ++i) {
    std::printf("step %zu  loss %.15g on %ld ranks, %.15g on one  grad norm %.12g, %.12g\n", i + 1,
                on_layout.losses[i], static_cast<long>(world_size), on_one_rank.losses[i], on_layout.grad_norms[i],
                on_one_rank.grad_norms[i]);
  }
  const bool equal = difference.loss <= verify::kLossTolerance &&
                     difference.grad_norm <= verify::kGradNormTolerance &&
                     difference.parameter <= verify::kParameterTolerance;
  std::printf("%s: losses differ by %.2e relative (allowed %.0e), parameters by %.2e (allowed %.0e%s%s)\n",
              equal ? "EQUAL" : "DIFFERENT", difference.loss, verify::kLossTolerance, difference.parameter,
              verify::kParameterTolerance, difference.parameter_name.empty() ? "" : ", worst at ",
              difference.parameter_name.c_str());
  return equal ? kExitOk : kExitNumerics;
}

}  // namespace metroplex::apps

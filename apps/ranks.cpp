// metroplex ranks: the rank map of a layout as a drawing or JSON, and queries on it.
#include <algorithm>
#include <iostream>
#include <optional>

#include "base/error.h"
#include "commands.h"
#include "config/parallel.h"
#include "files/file_system.h"
#include "apps/command.h"
#include "apps/console.h"
#include "draw/ranks.h"
#include "topology/megatron_groups.h"

namespace metroplex::apps {

namespace {

struct RanksOptions {
  int nproc = 0;
  int gtp = 1;
  int gpus_per_node = 0;
  std::optional<int> rank;
  std::string group, svg;
  bool json = false, megatron = false, no_color = false, tp_pp_dp = false;
  int max_rows = 16, max_columns = 8;
  config::Parallel parallel;
  topology::MegatronOptions groups;
};

void add_layout(CLI::App& app, RanksOptions& options) {
  config::Parallel& parallel = options.parallel;
  app.add_option("--nproc,--world-size", options.nproc, "number of ranks")->required();
  app.add_option("--tp,--tensor-model-parallel-size", parallel.tensor_model_parallel_size, "tensor-parallel size")
      ->capture_default_str();
  app.add_option("--pp,--pipeline-model-parallel-size", parallel.pipeline_model_parallel_size,
                 "pipeline-parallel size")
      ->capture_default_str();
  app.add_option("--vpp,--virtual-pipeline-model-parallel-size", parallel.virtual_pipeline_model_parallel_size,
                 "model chunks on each stage")
      ->capture_default_str();
  app.add_option("--cp,--context-parallel-size", parallel.context_parallel_size, "context-parallel size")
      ->capture_default_str();
  app.add_option("--ep,--expert-model-parallel-size", parallel.expert_model_parallel_size, "expert-parallel size")
      ->capture_default_str();
  app.add_option("--etp,--expert-tensor-parallel-size", parallel.expert_tensor_parallel_size,
                 "expert-tensor-parallel size; 0: same as tp")
      ->capture_default_str();
  app.add_option("--gtp,--gtp-remat-size", options.gtp, "weight shards within the data-parallel group")
      ->capture_default_str();
  app.add_option("--order", parallel.order, "order of the axes, fastest first")->capture_default_str();
  app.add_flag("--use-tp-pp-dp-mapping", options.tp_pp_dp, "use the order tp-cp-ep-pp-dp");
  app.add_option("--num-distributed-optimizer-instances", parallel.num_distributed_optimizer_instances,
                 "distributed-optimizer instances")
      ->capture_default_str();
  app.add_option("--hierarchical-context-parallel-sizes", options.groups.hierarchical_context_parallel_sizes,
                 "sizes of the context-parallel levels; their product must equal --cp")
      ->check(not_above_0);
  app.add_flag("--hybrid-context-parallel", options.groups.hybrid_context_parallel,
               "groups for a context-parallel size that varies by sample");
}

void check_context_levels(const RanksOptions& options) {
  const std::vector<int>& sizes = options.groups.hierarchical_context_parallel_sizes;
  const int64_t cp = options.parallel.cp();
  int64_t product = 1;
  std::string text;
  for (const int size : sizes) {
    product = std::min(product * size, int64_t{1} << 31);  // avoids overflow
    text += (text.empty() ? "" : " ") + std::to_string(size);
  }
  MPX_CHECK(sizes.empty() || product == cp, "config", "--hierarchical-context-parallel-sizes ", text,
            ": their product must be --context-parallel-size ", cp, "; choose other sizes, or leave them out");
}

void add_questions(CLI::App& app, RanksOptions& options) {
  app.add_option("--rank", options.rank, "show the position and the groups of this rank");
  app.add_option(
      "--group", options.group,
      "show the groups of an axis combination (dp-cp, etp-ep, ...) or of a Megatron name (EMBEDDING_GROUP)");
  app.add_option("--gpus-per-node", options.gpus_per_node, "draw one node per row; show which families cross nodes")
      ->check(not_above_0);
  app.add_flag("--megatron", options.megatron, "list every group that Megatron-LM creates, in its order");
  app.add_flag("--json", options.json, "print only JSON");
  app.add_option("--svg", options.svg, "also write the picture to this file")->check(no_file);
  app.add_flag("--no-color,--no-colour", options.no_color,
               "no colors (also if NO_COLOR is set or stdout is not a terminal)");
  app.add_option("--max-rows", options.max_rows, "maximum number of lines drawn")->capture_default_str();
  app.add_option("--max-columns", options.max_columns, "maximum number of ranks drawn in a line")
      ->capture_default_str();
}

// Returns Megatron's groups with the name of --group ("EMBEDDING_GROUP", "embedding"); nullopt if there are none.
std::optional<topology::NamedGroups> find_named(const topology::RankGrid& grid, const RanksOptions& options) {
  std::string name = options.group;
  for (char& letter : name) letter = letter == '-' ? '_' : static_cast<char>(std::toupper(letter));
  for (auto& family : topology::megatron_groups(grid, options.groups)) {
    if (family.name == name || family.name == name + "_GROUP") return family;
  }
  return std::nullopt;
}

topology::NamedGroups find_group(const topology::RankGrid& grid, const RanksOptions& options) {
  if (const auto named = find_named(grid, options)) return *named;
  return {options.group, grid.groups(topology::parse_axes(options.group))};
}

void answer_group(const topology::RankGrid& grid, const RanksOptions& options) {
  const auto [name, groups] = find_group(grid, options);
  if (!options.rank) {
    std::cout << "\n"
              << name << ": " << groups.size() << " groups\n"
              << draw::draw_groups(groups, options.gpus_per_node);
    return;
  }
  topology::RankGroups own;
  for (const auto& group : groups) {
    if (std::find(group.begin(), group.end(), *options.rank) != group.end()) own.push_back(group);
  }
  std::cout << "\n"
            << name << " of rank " << *options.rank << ":\n"
            << (own.empty() ? "  none\n" : draw::draw_groups(own, options.gpus_per_node));
}

void answer(const topology::RankGrid& grid, const RanksOptions& options) {
  if (!options.group.empty()) {
    answer_group(grid, options);
  } else if (options.rank) {
    std::cout << "\n" << draw::draw_rank(grid, *options.rank, options.gpus_per_node);
  }
  if (options.megatron) {
    for (const auto& family : topology::megatron_groups(grid, options.groups)) {
      std::cout << "\n" << family.name << "\n" << draw::draw_groups(family.groups, options.gpus_per_node);
    }
  }
  if (options.gpus_per_node > 0) std::cout << "\n" << draw::draw_reach(grid, options.gpus_per_node);
}

}  // namespace

int run_ranks(const std::vector<std::string>& arguments) {
  CLI::App app{
      "Draws the ranks of a layout and prints their groups.\n\n"
      "  metroplex ranks --nproc 16 --tp 2 --pp 4\n"
      "  metroplex ranks --nproc 16 --tp 4 --pp 2 --ep 4 --etp 1 --gpus-per-node 8 --rank 13\n"
      "  metroplex ranks --nproc 64 --tp 4 --cp 2 --pp 2 --group dp-cp --svg map.svg\n",
      "metroplex ranks"};
  RanksOptions options;
  add_layout(app, options);
  add_questions(app, options);
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;
  constexpr int kMostRanks = 1 << 24;
  MPX_CHECK(options.nproc <= kMostRanks, "config", "--nproc ", options.nproc, ": at most ", kMostRanks,
            " ranks can be drawn; choose fewer");
  if (options.tp_pp_dp) options.parallel.order = "tp-cp-ep-pp-dp";
  check_context_levels(options);

  const topology::RankGrid grid(options.nproc, options.parallel, options.gtp);
  draw::RankMapOptions draw;
  draw.gpus_per_node = options.gpus_per_node;
  draw.max_rows = options.max_rows;
  draw.max_columns = options.max_columns;
  const Terminal terminal = terminal_of_stdout();
  draw.colour = !options.no_color && terminal.colour;
  draw.line_columns = terminal.columns;
  if (options.rank) {
    (void)grid.coordinates(*options.rank);  // throws for a rank that does not exist
    draw.marked_rank = *options.rank;
  }
  if (!options.group.empty() && !find_named(grid, options)) draw.colour_by = topology::parse_axes(options.group);
  if (!options.svg.empty()) files::PosixFileSystem().write_output(options.svg, draw::draw_svg(grid, draw));
  if (options.json) {
    std::optional<topology::NamedGroups> group;
    if (!options.group.empty()) group = find_group(grid, options);
    std::cout << draw::to_json(grid, options.gpus_per_node, options.groups, {options.rank, group});
    return 0;
  }
  write_styled(std::cout, draw::draw_terminal(grid, draw));
  answer(grid, options);
  return 0;
}

}  // namespace metroplex::apps

// seeds.json: the worked examples of the five source documents. A case has figures in "seed" or, if the document is
// wrong, in "correct". Entries without figures are remarks about prose.
#include <algorithm>
#include <map>
#include <numeric>

#include "conformance/report.h"
#include "config/derived.h"
#include "plan/echo_parts.h"
#include "plan/layout.h"
#include "plan/megatron_order.h"
#include "plan/schedules/registry.h"
#include "support/graphs_without_sends.h"
#include "support/megatron_captures.h"
#include "topology/rank_grid.h"

namespace metroplex::conformance {
namespace {

using Rows = std::vector<int64_t>;

std::string compare_fields(const Json& got, const Json& expected) {
  for (const auto& [key, value] : got.items()) {
    if (!expected.contains(key)) continue;
    if (const std::string problem = compare(value, expected.at(key)); !problem.empty()) return key + ": " + problem;
  }
  return "";
}

// Runs plan::echo_spills on the rows of each expert, with `experts_of_rank` experts per rank.
struct Spills {
  explicit Spills(Rows rows, int experts_of_rank) : counts(std::move(rows)) {
    const auto experts = static_cast<int>(counts.size());
    sizes = {experts / experts_of_rank, experts, 1};
    counts.resize(static_cast<size_t>(sizes.ranks) * counts.size(), 0);  // all rows come from rank 0
    plan::plan_echo({counts.data(), sizes}, options, work, plan);
    plan::echo_spills({sizes, options, work});
  }
  Rows counts;
  plan::EchoSizes sizes;
  plan::EchoOptions options{.planner = config::EchoPlanner::greedy};
  plan::EchoWorkspace work;
  plan::EchoPlan plan;
};

std::string check_rank_loads(const Json& input, const Json& expected) {
  const Rows load = input.at("load").get<Rows>();
  Spills spills(load, 1);
  const int64_t mean = std::accumulate(load.begin(), load.end(), int64_t{0}) / static_cast<int64_t>(load.size());
  return compare_fields({{"avg", mean}, {"overflow", spills.work.spill}, {"spare", spills.work.spare}}, expected);
}

// The experts of one rank; a second rank without rows makes the mean half of the rank's rows.
std::string check_spillover(const Json& input, const Json& expected) {
  Rows tokens = input.at("tokens").get<Rows>();
  const size_t experts = tokens.size();
  if (std::accumulate(tokens.begin(), tokens.end(), int64_t{0}) != 2 * input.at("avg").get<int64_t>())
    return "avg is not half of the tokens: the runner cannot make such a load";
  tokens.resize(2 * experts, 0);
  Spills spills(tokens, static_cast<int>(experts));
  const Rows spill(spills.work.spill.begin(), spills.work.spill.begin() + static_cast<std::ptrdiff_t>(experts));
  return compare_fields({{"spillover", spill}, {"total", std::accumulate(spill.begin(), spill.end(), int64_t{0})}},
                        expected);
}

Json overlap_matrix(const Rows& chunks, const Rows& buckets) {
  std::vector<Rows> matrix(chunks.size(), Rows(buckets.size(), 0));
  plan::echo_overlap(chunks, buckets, [&](int chunk, int bucket, int64_t rows) {
    matrix[static_cast<size_t>(chunk)][static_cast<size_t>(bucket)] = rows;
  });
  return matrix;
}

// Sorts in descending order, equal values by index.
std::pair<Rows, Rows> sorted_with_order(const Rows& values) {
  Rows order(values.size()), sorted;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  for (const int64_t index : order) sorted.push_back(values[static_cast<size_t>(index)]);
  return {sorted, order};
}

std::string check_greedy(const Json& input, const Json& expected) {
  const auto [spillover, perm] = sorted_with_order(input.at("spillover").get<Rows>());
  const Rows spare = sorted_with_order(input.at("spare").get<Rows>()).first;
  const Json matrix = overlap_matrix(spillover, spare);
  return compare_fields({{"sorted_spillover", spillover},
                         {"perm", perm},
                         {"sorted_spare", spare},
                         {"matrix_rows01", {matrix.at(0), matrix.at(1)}}},
                        expected);
}

// One expert whose replica on another rank takes `capacity` rows.
std::string check_two_phases(const Json& input, const Json& expected) {
  const Rows tokens = input.at("tokens_from_rank").get<Rows>();
  const int64_t capacity = input.at("capacity").get<int64_t>(),
                all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  const auto ranks = static_cast<int>(tokens.size());
  const plan::EchoSizes sizes{ranks, ranks, 1};
  Rows counts(static_cast<size_t>(ranks) * static_cast<size_t>(ranks), 0), floors;
  for (int rank = 0; rank < ranks; ++rank) {
    counts[static_cast<size_t>(rank * ranks)] = tokens[static_cast<size_t>(rank)];
    floors.push_back(plan::echo_breadth(tokens[static_cast<size_t>(rank)], all, capacity, false));
  }
  plan::EchoOptions options{.planner = config::EchoPlanner::greedy, .split = plan::EchoSplit::breadth_then_depth};
  plan::EchoWorkspace work;
  plan::EchoPlan plan;
  const plan::EchoCounts view{counts.data(), sizes};
  plan::plan_echo(view, options, work, plan);  // sizes the workspace
  plan.owner.assign(static_cast<size_t>(ranks), -1);
  plan.rows.assign(static_cast<size_t>(ranks), 0);
  plan.owner[1] = 0;
  plan.rows[1] = capacity;
  plan::echo_split(view, {sizes, options, work}, plan);
  Rows split, second;
  for (int rank = 0; rank < ranks; ++rank) {
    split.push_back(plan.from(rank, 1));
    second.push_back(split.back() - floors[static_cast<size_t>(rank)]);
  }
  const int64_t sum = std::accumulate(floors.begin(), floors.end(), int64_t{0});
  return compare_fields(
      {{"floors", floors}, {"sum", sum}, {"remaining", capacity - sum}, {"second", second}, {"final", split}},
      expected);
}

std::string check_groups(const Json& input, const Json& expected) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = input.value("tp", 1);
  parallel.pipeline_model_parallel_size = input.value("pp", 1);
  parallel.expert_model_parallel_size = input.value("ep", 1);
  parallel.expert_tensor_parallel_size = input.value("etp", 0);
  parallel.order = input.value("order", parallel.order);
  const topology::RankGrid grid(input.at("world").get<int>(), parallel);
  if (expected.is_array()) return compare(grid.groups(topology::parse_axes("mp")), expected);
  for (const auto& [axes, groups] : expected.items()) {
    if (axes == "dp" && groups.is_number()) {
      if (grid.size(topology::Axis::dp) != groups.get<int>())
        return "dp is " + std::to_string(grid.size(topology::Axis::dp));
      continue;
    }
    if (const auto problem = compare(grid.groups(topology::parse_axes(axes)), groups); !problem.empty())
      return axes + ": " + problem;
  }
  return "";
}

plan::MicrobatchShape seed_shape(const Json& input) {
  plan::MicrobatchShape shape;
  shape.num_stages = input.at("pp").get<int>();
  shape.num_chunks = input.at("vpp").get<int>();
  shape.interleaved = true;
  shape.num_microbatches = input.at("M").get<int>();
  shape.group_size = input.at("group").get<int>();
  return shape;
}

std::string check_order(const Json& input, const Json& expected) {
  const plan::MicrobatchShape shape = seed_shape(input);
  const int warmup = plan::count_warmup(shape, input.at("rank").get<int>()).warmup;
  const auto order = plan::table_to_order(
      warmup, shape.num_chunks, plan::schedule_table(shape.num_microbatches, shape.num_chunks, shape.group()));
  return compare_fields({{"warmup", warmup}, {"order", order}}, expected);
}

// "pp4_vpp2_rank0" -> the peak, for any number of microbatches in the steady state.
std::string check_peaks(const Json& values) {
  for (const auto& [name, peak] : values.items()) {
    int pp = 0, vpp = 0, rank = 0;
    if (std::sscanf(name.c_str(), "pp%d_vpp%d_rank%d", &pp, &vpp, &rank) != 3) return "what is " + name + "?";
    const Json input{{"pp", pp}, {"vpp", vpp}, {"rank", rank}, {"group", pp}, {"M", 4 * pp}};
    const plan::MicrobatchShape shape = seed_shape(input);
    const auto order =
        plan::table_to_order(plan::count_warmup(shape, rank).warmup, vpp, plan::schedule_table(4 * pp, vpp, pp));
    if (const std::string problem = compare(plan::peak_in_flight(order), peak); !problem.empty())
      return name + ": " + problem;
  }
  return "";
}

// As many graph instances as stages; the next microbatch uses the first one again.
std::string check_reuse(const Json& input) {
  const int pp = input.at("pp").get<int>();
  const auto table = plan::build_schedule("1f1b", {pp, 1, 2 * pp});
  const auto instances = test::plan_graphs_without_sends(table, input.at("rank").get<int>(), plan::alike_layers({1}));
  std::vector<int> expected;
  for (int microbatch = 0; microbatch < 2 * pp; ++microbatch) expected.push_back(microbatch % pp);
  return compare(instances.instance_of[0], expected);
}

std::string check_offsets(const Json& input, const Json& expected) {
  config::Parallel parallel;
  parallel.pipeline_model_parallel_size = input.at("pp").get<int64_t>();
  parallel.virtual_pipeline_model_parallel_size = input.at("vpp").get<int64_t>();
  const auto stages = plan::split_stages(parallel, input.at("num_layers").get<int64_t>());
  Json got;
  for (int64_t rank = 0; rank < parallel.pp(); ++rank) {
    for (int64_t chunk = 0; chunk < parallel.vpp(); ++chunk)
      got["offsets_rank" + std::to_string(rank)].push_back(
          stages.at(static_cast<size_t>(chunk * parallel.pp() + rank)).first_layer);
  }
  return compare_fields(got, expected);
}

using Check = std::function<std::string(const Json& input, const Json& expected)>;

const std::map<std::string, Check>& checks() {
  static const std::map<std::string, Check> kChecks = {
      {"000.rank_loads", check_rank_loads},
      {"000.spillover", check_spillover},
      {"000.overlap_2x2",
       [](const Json& input, const Json& expected) {
         return compare_fields(
             {{"matrix", overlap_matrix(input.at("chunks").get<Rows>(), input.at("buckets").get<Rows>())}}, expected);
       }},
      {"000.greedy_8experts", check_greedy},
      {"000.two_phase_80", check_two_phases},
      {"000.two_phase_83", check_two_phases},
      {"001.groups", check_groups},
      {"002.warmup", check_order},
      {"002.order", check_order},
      {"002.reuse_noninterleaved", [](const Json& input, const Json&) { return check_reuse(input); }},
      {"003.layers_8", check_offsets},
      {"004.mp_groups", check_groups},
      {"004.groups_16", check_groups},
      {"004.dp_size", check_groups}};
  return kChecks;
}

// Expected figures of an entry: the document's if correct, else the correction; null for a remark.
Json expected_seed(const Json& entry) {
  if (entry.contains("correct") && !entry.at("correct").is_string()) return entry.at("correct");
  return entry.value("ok", false) && entry.contains("seed") ? entry.at("seed") : Json();
}

void check_entry(const Json& entry, Report& report) {
  const std::string id = entry.at("id").get<std::string>();
  if (entry.contains("values")) return report.check(id, [&] { return check_peaks(entry.at("values")); });
  const Json figures = expected_seed(entry);
  if (figures.is_null() || !entry.contains("input")) return;
  // Counterexamples of the document: without the cumulative sum, and without sorting. No planner computes these.
  if (id == "000.direct_subtract" || id == "000.unsorted") return;
  const auto found = checks().find(id);
  report.check(id, [&]() -> std::string {
    if (found == checks().end()) return "no check knows these figures";
    return found->second(entry.at("input"), figures);
  });
}

}  // namespace

void run_seeds(const Json& file, Report& report) {
  for (const auto& [document, entries] : file.items()) {
    if (!entries.is_array()) continue;
    for (const Json& entry : entries) check_entry(entry, report);
  }
}

}  // namespace metroplex::conformance

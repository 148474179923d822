// echo_planner.json: replica plans of Megatron's pull request 2368, split over the source ranks, and the destination
// slots of tokens.
#include "conformance/report.h"
#include "plan/echo_parts.h"
#include "support/echo_check.h"
#include "support/echo_reroute.h"

namespace metroplex::conformance {
namespace {

using config::EchoPlanner;
using plan::EchoCounts;
using plan::EchoOptions;
using plan::EchoPlan;
using plan::EchoSizes;

using Rows = std::vector<int64_t>;
using Matrix = std::vector<Rows>;

Matrix zeros(int rows, int columns) {
  return Matrix(static_cast<size_t>(rows), Rows(static_cast<size_t>(columns), 0));
}

struct EchoCase {
  explicit EchoCase(const Json& json) : sizes{json.at("ep").get<int>(), json.at("num_experts").get<int>(), 0} {
    for (const Json& row : json.at("counts")) {
      for (const Json& count : row) counts.push_back(count.get<int64_t>());
    }
    if (counts.size() != static_cast<size_t>(sizes.ranks) * static_cast<size_t>(sizes.experts))
      throw std::runtime_error("counts are not [ep][num_experts]");
  }
  EchoCounts with(int slots) const { return {counts.data(), {sizes.ranks, sizes.experts, slots}}; }
  EchoSizes sizes;
  Rows counts;
};

EchoOptions to_upstream(EchoPlanner planner, double threshold) {
  EchoOptions options;
  options.planner = planner;
  options.split = plan::EchoSplit::breadth_then_depth;
  options.reclaim = threshold;
  options.float32 = true;
  return options;
}

std::string differs(const char* what, const Json& got, const Json& recorded) {
  const std::string problem = compare(got, recorded.at(what));
  return problem.empty() ? "" : std::string(what) + ": " + problem;
}

// Surplus and free capacity of a rank.
std::string check_spills(const Json& json) {
  const EchoCase given(json);
  plan::EchoWorkspace work;
  EchoPlan plan;
  const EchoOptions options = to_upstream(EchoPlanner::greedy, 0);
  plan::plan_echo(given.with(1), options, work, plan);
  const plan::EchoTask task{given.with(1).sizes, options, work};
  plan::echo_spills(task);
  for (const auto& problem : {differs("avg", task.mean(), json), differs("load_per_ep_rank", work.loads, json),
                              differs("spare", work.spare, json), differs("spillover", work.spill, json)}) {
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string check_plan(const EchoCase& given, EchoPlanner planner, const Json& entry) {
  const EchoCounts counts = given.with(entry.value("num_spare_per_rank", 1));
  const EchoOptions options = to_upstream(planner, entry.value("threshold", 0.0));
  const EchoPlan plan = plan_echo(counts, options);
  const EchoSizes sizes = counts.sizes;
  if (const std::string problem = test::echo_problem(counts, options, plan); !problem.empty()) return problem;
  if (entry.contains("undefined")) return "";
  Matrix assign = zeros(sizes.experts, sizes.replicas());
  Matrix breadth = zeros(sizes.ranks, sizes.replicas()), depth = breadth, from = breadth;
  for (int replica = 0; replica < sizes.replicas(); ++replica) {
    const size_t k = static_cast<size_t>(replica);
    const int32_t owner = plan.owner[k];
    if (owner < 0) continue;
    assign[static_cast<size_t>(owner)][k] = plan.rows[k];
    int64_t all = 0;
    for (int rank = 0; rank < sizes.ranks; ++rank) all += counts.at(rank, owner);
    for (int rank = 0; rank < sizes.ranks; ++rank) {
      const size_t r = static_cast<size_t>(rank);
      breadth[r][k] = plan::echo_breadth(counts.at(rank, owner), all, plan.rows[k], true);
      from[r][k] = plan.from(rank, replica);
      depth[r][k] = from[r][k] - breadth[r][k];
    }
  }
  for (const auto& problem :
       {differs("assign", assign, entry), differs("breadth_first", breadth, entry),
        differs("depth_first", depth, entry), differs("offloaded_[ep_rank][spare]", from, entry),
        differs("final_load_per_ep_rank", plan.final_loads, entry), differs("check_totals", true, entry)}) {
    if (!problem.empty()) return problem;
  }
  return "";
}

// The destination slots of one rank's tokens; follows the values of a choice in both directions.
std::string check_rank(const EchoPlan& plan, const Json& choices, const Json& recorded) {
  const int rank = recorded.at("ep_rank").get<int>();
  std::vector<int32_t> experts;
  for (const Json& token : choices.at(static_cast<size_t>(rank))) {
    for (const Json& expert : token) experts.push_back(expert.get<int32_t>());
  }
  const size_t tokens = choices.at(static_cast<size_t>(rank)).size(),
               topk = tokens == 0 ? 0 : experts.size() / tokens;
  const std::vector<int32_t> columns = plan::echo_reroute(plan, rank, experts);
  const size_t num_columns = static_cast<size_t>(plan.sizes.columns());
  const size_t num_experts = static_cast<size_t>(plan.sizes.experts);
  Json rerouted = Json::array();
  Rows in_columns(num_columns, 0);
  std::vector<float> probs(tokens * num_columns, 0), folded(tokens * num_experts), chosen(tokens * num_experts, 0);
  for (size_t token = 0; token < tokens; ++token) {
    std::vector<int32_t> of_token(columns.begin() + static_cast<std::ptrdiff_t>(token * topk),
                                  columns.begin() + static_cast<std::ptrdiff_t>((token + 1) * topk));
    for (size_t i = token * topk; i < (token + 1) * topk; ++i) {
      const float prob = static_cast<float>(token + 1) + static_cast<float>(experts[i]) / 100;
      ++in_columns[static_cast<size_t>(columns[i])];
      probs[token * num_columns + static_cast<size_t>(columns[i])] = prob;
      chosen[token * num_experts + static_cast<size_t>(experts[i])] = prob;
    }
    std::sort(of_token.begin(), of_token.end());
    rerouted.push_back(of_token);
  }
  plan::echo_fold(plan, std::span<const float>(probs), std::span(folded));
  if (folded != chosen) return "probabilities folded back are others";
  const std::string problem = differs("rerouted_columns_per_token", rerouted, recorded);
  return problem.empty() ? differs("tokens_per_expert", in_columns, recorded) : problem;
}

std::string check_reroute(const EchoCase& given, const Json& choices, const Json& entry) {
  const std::string algorithm = entry.at("algorithm").get<std::string>();
  if (algorithm != "one_shot_greedy" && algorithm != "approx_bin_packing") return "no planner is called " + algorithm;
  const EchoPlanner planner = algorithm == "one_shot_greedy" ? EchoPlanner::greedy : EchoPlanner::binpack;
  const EchoCounts counts = given.with(entry.at("num_spare_per_rank").get<int>());
  const EchoPlan plan = plan_echo(counts, to_upstream(planner, 0));
  Matrix owners = zeros(counts.sizes.experts, counts.sizes.replicas());
  for (size_t k = 0; k < plan.owner.size(); ++k) {
    if (plan.owner[k] >= 0) owners[static_cast<size_t>(plan.owner[k])][k] = 1;
  }
  if (const std::string problem = differs("map_home_to_spare", owners, entry); !problem.empty()) return problem;
  for (const Json& rank : entry.at("ranks")) {
    if (const std::string problem = check_rank(plan, choices, rank); !problem.empty())
      return "rank " + rank.at("ep_rank").dump() + ", " + problem;
  }
  return "";
}

std::string check_overlap(const Json& json) {
  const Rows chunks = json.at("chunks"), buckets = json.at("buckets");
  Matrix out = zeros(static_cast<int>(chunks.size()), static_cast<int>(buckets.size()));
  plan::echo_overlap(chunks, buckets, [&](int chunk, int bucket, int64_t rows) {
    out[static_cast<size_t>(chunk)][static_cast<size_t>(bucket)] += rows;
  });
  return differs("out", out, json);
}

std::string check_packing(const Json& json) {
  Rows rest = json.at("spillover_sorted_desc");
  const Rows buckets = json.at("spare_sorted_desc");
  Matrix assign = zeros(static_cast<int>(rest.size()), static_cast<int>(buckets.size()));
  std::vector<int32_t> next(rest.size());
  plan::echo_pack(rest, buckets, json.at("avg").get<int64_t>(), json.at("num_buckets").get<int>(), next,
                  [&](int chunk, int bucket, int64_t rows) {
                    assign[static_cast<size_t>(chunk)][static_cast<size_t>(bucket)] += rows;
                  });
  const std::string problem = differs("assign", assign, json);
  return problem.empty() ? differs("remaining", rest, json) : problem;
}

// S1, S2, ... with the threshold if there is one.
std::string entry_name(const std::string& case_name, const char* planner, const Json& entry) {
  return case_name + " " + planner + " S" + entry.value("num_spare_per_rank", Json(1)).dump() +
         (entry.contains("threshold") ? " mu " + entry.at("threshold").dump() : "");
}

}  // namespace

void run_echo_planner(const Json& file, Report& report) {
  for (const Json& json : cases(file, "cases")) {
    const std::string name = json.at("name").get<std::string>();
    report.check(name + " spills", json, [&] { return check_spills(json); });
    if (is_refusal(json)) continue;
    for (const Json& entry : json.at("greedy")) {
      report.check(entry_name(name, "greedy", entry), entry,
                   [&] { return check_plan(EchoCase(json), EchoPlanner::greedy, entry); });
    }
    const Json& packing = json.at("approx_bin_packing");
    report.check(entry_name(name, "binpack", packing), packing,
                 [&] { return check_plan(EchoCase(json), EchoPlanner::binpack, packing); });
    for (const Json& entry : cases(json, "reroute")) {
      report.check(entry_name(name, "reroute", entry) + " " + entry.at("algorithm").dump(), entry,
                   [&] { return check_reroute(EchoCase(json), json.at("routing_choices"), entry); });
    }
  }
  const Json primitives = cases(file, "primitives");
  const auto all = [&](const char* list, std::string (*check)(const Json&)) {
    int number = 0;
    for (const Json& json : primitives.is_object() ? cases(primitives, list) : Json::array())
      report.check(std::string(list) + " " + std::to_string(number++), json, [&] { return check(json); });
  };
  all("one_shot_greedy", check_overlap);
  all("approx_bin_packing", check_packing);
}

}  // namespace metroplex::conformance

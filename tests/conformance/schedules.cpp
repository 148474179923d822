// schedules.json: warm-up counts, schedule table, order and derived values, for every rank. The builder's table must
// do the same work in the same order, verified.
#include "base/error.h"
#include "conformance/report.h"
#include "plan/graph_plan.h"
#include "plan/schedules/registry.h"
#include "plan/verify.h"
#include "support/graphs_without_sends.h"
#include "support/megatron_captures.h"

namespace metroplex::conformance {
namespace {

using plan::MicrobatchShape;
using plan::Slot;

Json to_json(const std::vector<Slot>& table) {
  Json json = Json::array();
  for (const Slot& slot : table) json.push_back({slot.microbatch, slot.chunk});
  return json;
}

Json to_json(const plan::LayerOrder& layers) {
  Json json = Json::array();
  for (const auto& entry : layers.chunk_and_layer) {
    json.push_back(entry ? Json{entry->first, entry->second} : Json(nullptr));
  }
  return json;
}

void expect(std::string& problem, const Json& recorded, const char* field, const Json& got) {
  if (!recorded.contains(field) || !problem.empty()) return;
  problem = compare_list(got, recorded, field);
}

void check_overlap(std::string& problem, const Json& recorded, const std::vector<int>& order, int chunks) {
  const std::vector<int> layers(static_cast<size_t>(chunks), 2);
  const auto plain = plan::overlap_layer_order(order, layers, false);
  const auto split = plan::overlap_layer_order(order, layers, true);
  expect(problem, recorded, "overlap_order_2layers_wgrad0", plain.order);
  expect(problem, recorded, "overlap_order_2layers_wgrad1", split.order);
  expect(problem, recorded, "overlap_chunk_id_list_2layers", to_json(plain));
}

std::string check_rank(const Json& recorded, MicrobatchShape shape, const std::vector<Slot>& table) {
  const int rank = recorded.at("rank").get<int>();
  const auto counts = plan::count_warmup(shape, rank);
  auto forward_only = shape, overlap = shape;
  forward_only.forward_only = true;
  overlap.overlap_moe = true;
  const auto evaluation = plan::count_warmup(forward_only, rank);
  const auto with_overlap = plan::count_warmup(overlap, rank);
  const auto order = plan::table_to_order(counts.warmup, shape.num_chunks, table);
  const auto sets = [&](int layers) {
    const std::vector<int> each(static_cast<size_t>(shape.num_chunks), layers);
    return plan::megatron_sets(order, plan::alike_layers(each), shape.num_microbatches);
  };
  const auto one = sets(1), two = sets(2);
  std::string problem;
  expect(problem, recorded, "total", counts.total);
  expect(problem, recorded, "all_warmup", counts.all_warmup);
  expect(problem, recorded, "warmup", counts.warmup);
  expect(problem, recorded, "remaining", counts.remaining);
  expect(problem, recorded, "forward_only_warmup", evaluation.warmup);
  expect(problem, recorded, "forward_only_remaining", evaluation.remaining);
  expect(problem, recorded, "warmup_overlap_moe", with_overlap.warmup);
  expect(problem, recorded, "all_warmup_overlap_moe", with_overlap.all_warmup);
  expect(problem, recorded, "remaining_overlap_moe", with_overlap.remaining);
  expect(problem, recorded, "order", order);
  expect(problem, recorded, "peak_in_flight_chunk_activations", plan::peak_in_flight(order));
  expect(problem, recorded, "te_graph_static_input_sets_1layer", one.num_sets);
  expect(problem, recorded, "te_graph_slot_of_fwd_idx_1layer", one.set_of_forward);
  expect(problem, recorded, "te_graph_static_input_sets_2layers", two.num_sets);
  expect(problem, recorded, "te_graph_slot_of_fwd_idx_2layers", two.set_of_forward);
  if (recorded.contains("te_graph_num_warmup_iters")) {
    Json runs = Json::object();
    for (const auto& [steps, value] : recorded.at("te_graph_num_warmup_iters").items()) {
      runs[steps] = plan::graph_warmup_runs(shape.num_stages, shape.num_microbatches, std::stoi(steps));
    }
    expect(problem, recorded, "te_graph_num_warmup_iters", runs);
  }
  check_overlap(problem, recorded, order, shape.num_chunks);
  return problem.empty() ? "" : "rank " + std::to_string(rank) + " " + problem;
}

// Compares a rank of our table: its order, and its graph instances if sends take no time. They are Megatron's static
// input sets. The assignment of passes is compared only if a rank has one chunk.
std::string check_rank(const plan::PipelineTable& table, const Json& recorded) {
  const int rank = recorded.at("rank").get<int>();
  std::string problem = compare_list(plan::capture_order(table, rank), recorded, "order");
  const plan::GraphLayers layers = plan::alike_layers(std::vector<int>(static_cast<size_t>(table.num_chunks), 1));
  const plan::GraphPlan plan = test::plan_graphs_without_sends(table, rank, layers);
  plan::verify_graphs(plan::plan_graphs(table, rank, layers), table, rank);
  expect(problem, recorded, "te_graph_static_input_sets_1layer", plan.num_instances);
  if (table.num_chunks == 1) expect(problem, recorded, "te_graph_slot_of_fwd_idx_1layer", plan.instance_of[0]);
  return problem;
}

std::string check_built(const Json& config, const MicrobatchShape& shape) {
  plan::ScheduleRequest request;
  request.num_stages = shape.num_stages;
  request.num_chunks = shape.num_chunks;
  request.num_microbatches = shape.num_microbatches;
  request.microbatch_group_size = shape.interleaved ? shape.group_size : 0;
  const std::string name = shape.interleaved ? "interleaved" : "auto";
  try {
    const auto table = plan::build_schedule(name, request);
    plan::verify(table);
    if (!config.value("valid_for_training", true))  // here it trains, by a table that Megatron does not have
      return plan::interleaved_refusal(shape).empty() ? "not refused by Megatron's rule" : "";
    for (const Json& rank : config.at("ranks")) {
      const std::string difference = check_rank(table, rank);
      if (!difference.empty()) return "built table of rank " + rank.at("rank").dump() + ": " + difference;
    }
  } catch (const base::Error& error) {
    if (config.value("valid_for_training", true)) return std::string("refused: ") + error.what();
  }
  return "";
}

std::string check_config(const Json& config) {
  MicrobatchShape shape;
  shape.num_stages = config.at("pp").get<int>();
  shape.interleaved = !config.at("vpp").is_null();
  shape.num_chunks = shape.interleaved ? config.at("vpp").get<int>() : 1;
  shape.num_microbatches = config.at("num_microbatches").get<int>();
  shape.group_size = config.at("group_size").get<int>();
  const auto table = plan::schedule_table(shape.num_microbatches, shape.num_chunks, shape.group());
  std::string problem;
  expect(problem, config, "schedule_table", to_json(table));
  if (!problem.empty()) return problem;
  for (const Json& rank : cases(config, "ranks")) {
    problem = check_rank(rank, shape, table);
    if (!problem.empty()) return problem;
  }
  return check_built(config, shape);
}

std::string check_example(const Json& example) {
  const auto layers = plan::overlap_layer_order(example.at("order").get<std::vector<int>>(),
                                                example.at("num_layers_per_chunk").get<std::vector<int>>(),
                                                example.at("capture_wgrad_graph").get<bool>());
  const std::string order = compare_list(layers.order, example, "new_order");
  return order.empty() ? compare_list(to_json(layers), example, "chunk_id_list") : order;
}

}  // namespace

void run_schedules(const Json& file, Report& report) {
  for (const Json& config : cases(file, "configs")) {
    const std::string name = "pp " + config.at("pp").dump() + " vpp " + config.at("vpp").dump() + " microbatches " +
                             config.at("num_microbatches").dump() + " group " + config.at("group_size").dump();
    report.check(name, config, [&] { return check_config(config); });
  }
  for (const Json& example : cases(file, "overlap_examples")) {
    report.check("overlap of " + example.at("order").dump(), example, [&] { return check_example(example); });
  }
  if (file.contains("docstring_example")) {
    const Json& example = file.at("docstring_example");
    report.check("order of a given table", example, [&] {
      std::vector<Slot> table;
      int chunks = 0;
      for (const Json& entry : example.at("table")) {
        table.push_back({entry.at(0).get<int>(), entry.at(1).get<int>()});
        chunks = std::max(chunks, table.back().chunk + 1);
      }
      return compare_list(plan::table_to_order(example.at("warmup").get<int>(), chunks, table), example, "order");
    });
  }
}

}  // namespace metroplex::conformance

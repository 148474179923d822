#include "draw/schedule.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/bytes_text.h"
#include "base/error.h"

namespace metroplex::draw {

namespace {

int count_passes(const plan::PipelineTable& table) {
  return table.forward_only ? 1 : table.splits_backward() ? 3 : 2;
}

std::string align_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i)
      text += std::string(widths[i] - row[i].size() + (i == 0 ? 0 : 2), ' ') + row[i];
    text += "\n";
  }
  return text;
}

}  // namespace

GraphNumbers graph_numbers(const plan::GraphPlan& plan, const plan::PipelineTable& table, int pp_rank,
                           const plan::GraphLayers& layers, const std::map<int, plan::GraphTensors>& tensors,
                           const std::map<int, int64_t>& megatron_stores) {
  GraphNumbers numbers;
  numbers.layers = std::accumulate(plan.layers_of_chunk.begin(), plan.layers_of_chunk.end(), 0);
  numbers.instances = plan.num_instances;
  numbers.graphs = plan.num_graphs();
  const int64_t each = static_cast<int64_t>(count_passes(table)) * numbers.layers;
  // Megatron captures a single microbatch if there is no pipeline, and all of them otherwise.
  numbers.megatron_graphs = each * (table.num_stages == 1 ? 1 : table.num_microbatches);
  numbers.bound = each * table.num_stages;
  const std::vector<int> order = capture_order(table, pp_rank);
  plan::GraphLayers alike = plan::alike_layers(plan.layers_of_chunk);  // inputs are equal even if results differ
  numbers.megatron_sets = megatron_sets(order, alike, table.num_microbatches).num_sets;
  const plan::LayerOrder in_turns = plan::overlap_layer_order(order, plan.layers_of_chunk, false);
  numbers.megatron_sets_in_turns = megatron_sets(in_turns, alike, table.num_microbatches).num_sets;
  numbers.bytes = graph_bytes(plan, layers, tensors);
  const std::vector<std::vector<size_t>> chunks_of = plan.chunks_of_instance();
  for (const std::vector<size_t>& chunks : chunks_of) {
    int64_t most = 0;
    for (const size_t chunk : chunks) {
      int64_t stores = 0;
      for (const int signature : layers.signatures[chunk]) {
        const auto store = megatron_stores.find(signature);
        if (store != megatron_stores.end()) stores += store->second;
      }
      most = std::max(most, stores);
    }
    numbers.megatron_stores += most;
  }
  for (const std::vector<int>& signatures : layers.signatures) {
    for (const int signature : signatures) {
      const std::vector<int64_t>& inputs = tensors.at(signature).inputs;
      numbers.megatron_inputs = numbers.megatron_sets * std::accumulate(inputs.begin(), inputs.end(), int64_t{0});
    }
  }
  return numbers;
}

GraphNumbers graph_numbers(const plan::GraphPlan& plan, const plan::PipelineTable& table, int pp_rank,
                           const plan::GraphLayers& layers, int64_t layer_bytes) {
  std::map<int, plan::GraphTensors> tensors;
  for (const std::vector<int>& of_chunk : layers.signatures) {
    for (const int signature : of_chunk) tensors[signature] = {{layer_bytes}, {layer_bytes}};
  }
  return graph_numbers(plan, table, pp_rank, layers, tensors);
}

std::string draw_graphs(const plan::PipelineTable& table, const replay::Timeline& timeline,
                        const std::vector<plan::GraphPlan>& plans, const std::vector<GraphNumbers>& numbers,
                        const ScheduleOptions& options) {
  MPX_ASSERT(plans.size() == table.ranks.size() && numbers.size() == plans.size(),
             "draw_graphs needs one plan and one entry of numbers per pipeline rank");
  const bool chunks = table.num_chunks > 1;
  DrawLabels labels;
  labels.box = [&](size_t rank, const plan::Action& action) {
    const int instance =
        plans[rank].instance_of[static_cast<size_t>(action.chunk)][static_cast<size_t>(action.microbatch)];
    return (instance < 0 ? "-" : std::to_string(instance)) +
           (chunks ? std::string(1, static_cast<char>('a' + action.chunk % 26)) : "");
  };
  labels.row_end = [&](size_t rank) { return "instances " + std::to_string(plans[rank].num_instances); };
  labels.legend = chunks ? "a box: graph instance and chunk (a, b, ...)" : "a box: graph instance";
  for (const plan::GraphPlan& plan : plans) {
    const size_t digits = std::to_string(std::max(0, plan.num_instances - 1)).size();
    labels.widest = std::max(labels.widest, digits + (chunks ? 1 : 0));
  }
  const int passes = count_passes(table);
  const bool stores =
      std::any_of(numbers.begin(), numbers.end(), [](const auto& n) { return n.megatron_stores > 0; });
  std::vector<std::vector<std::string>> rows{{"rank", "layers", "live", "instances", "graphs", "Megatron's", "bound",
                                              "inputs", "results", "gradients", "Megatron's inputs"}};
  if (stores) rows[0].emplace_back("and stores");
  const auto bytes = [](int64_t count) { return base::bytes_text(static_cast<double>(count)); };
  for (size_t rank = 0; rank < numbers.size(); ++rank) {
    const GraphNumbers& n = numbers[rank];
    rows.push_back({std::to_string(rank), std::to_string(n.layers),
                    std::to_string(timeline.peak_live_activations[rank]), std::to_string(n.instances),
                    std::to_string(n.graphs), std::to_string(n.megatron_graphs), std::to_string(n.bound),
                    bytes(n.bytes.inputs), bytes(n.bytes.results), bytes(n.bytes.gradients + n.bytes.input_gradients),
                    bytes(n.megatron_inputs)});
    if (stores) rows.back().push_back(bytes(n.megatron_stores));
  }
  const std::string times = std::to_string(passes) + " x layers x ";
  return draw_text(table, timeline, options, labels) + align_columns(rows) + "graphs: " + times +
         "instances of their chunk; Megatron's: " + times +
         (table.num_stages == 1 ? "1, without a pipeline" : "microbatches") + "; bound: " + times +
         "pp; live: forwards that wait for their backward at a time\n";
}

}  // namespace metroplex::draw

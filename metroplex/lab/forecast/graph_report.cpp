#include "forecast/graph_report.h"

#include <cstdio>

#include "step/assemble.h"
#include "forecast/memory_report.h"
#include "step/partial_graphs.h"
#include "forecast/predict.h"
#include "step/step_graphs.h"

namespace metroplex::forecast {
namespace {

struct Total {
  int64_t graphs = 0, nodes = 0, graph_bytes = 0, static_bytes = 0, results = 0;
  graph::GraphPool::Bytes pool;
};

void add(Total& total, const pipeline::GraphSizes& part) {
  total.graphs += part.graphs;
  total.nodes += part.size.nodes;
  total.graph_bytes += part.size.bytes;
  total.static_bytes += part.static_inputs + part.gradients;
  total.results += part.results;
  total.pool.peak += part.pools.peak;
  total.pool.reserved += part.pools.reserved;
}

Total sum_graphs(const step::CapturedGraphs& graphs) {
  Total total;
  if (graphs.step) {
    const step::StepGraphs::Sizes sizes = graphs.step->sizes();
    total.graphs = (sizes.training.nodes > 0) + (sizes.evaluation.nodes > 0);
    total.nodes = sizes.training.nodes + sizes.evaluation.nodes;
    total.graph_bytes = sizes.training.bytes + sizes.evaluation.bytes;
    total.static_bytes = sizes.static_inputs;
    total.pool = sizes.pool;
  } else if (graphs.partial) {
    const step::PartialGraphs::Sizes sizes = graphs.partial->sizes();
    add(total, sizes.training);
    add(total, sizes.evaluation);
  }
  return total;
}

// Lists the segments of a block, in their graphs: "[self_attention > mlp]".
std::string format_block(const nn::Block& block, const pipeline::StageRegions& regions, size_t& region) {
  std::string text;
  for (size_t segment = 0; segment < block.segments.size(); ++region) {
    const pipeline::StageRegions::Entry& place = regions.entries[region];
    const size_t end = segment + place.region.segments.size();
    std::string inside;
    for (; segment < end; ++segment) {
      const std::string& name = block.segments[segment]->name();
      const bool own = name.rfind(block.name + ".", 0) == 0;
      inside += (inside.empty() ? "" : " > ") + (own ? name.substr(block.name.size() + 1) : name);
    }
    text += (text.empty() ? "" : " > ") + (place.graph >= 0 ? "[" + inside + "]" : inside);
  }
  return text;
}

std::string format_stage(const pipeline::Stage& stage) {
  std::vector<std::pair<std::string, int>> alike;
  size_t region = 0;
  for (const nn::Block& block : stage.blocks()) {
    const std::string text = format_block(block, stage.regions(), region);
    if (!alike.empty() && alike.back().first == text) ++alike.back().second;
    else alike.emplace_back(text, 1);
  }
  std::string all;
  for (const auto& [text, times] : alike) {
    all += all.empty() ? "" : " > ";
    all += times == 1 ? text : std::to_string(times) + " x (" + text + ")";
  }
  return all;
}

int64_t predicted_pools(const step::ProcessContext& process, int64_t num_microbatches) {
  return predict_memory({process.config, process.world->size(), process.world->rank(), process.vocab_size,
                         num_microbatches, process.world->device()})
      .graph_pools;
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / 1048576; }

}  // namespace

int64_t captured_graphs(const step::CapturedGraphs& graphs) { return sum_graphs(graphs).graphs; }

std::vector<std::string> graph_lines(const step::ProcessContext& process, const step::CapturedGraphs& graphs,
                                     int64_t num_microbatches) {
  if (!process.graph_device) return {};
  const Total total = sum_graphs(graphs);
  char text[256];
  std::snprintf(
      text, sizeof text,
      " rank 0 has captured %lld graphs of %lld operations; MiB: graphs %.2f | static inputs %.2f | pool %.2f, "
      "of it tensors at most %.2f",
      static_cast<long long>(total.graphs), static_cast<long long>(total.nodes), mib(total.graph_bytes),
      mib(total.static_bytes), mib(total.pool.reserved), mib(total.pool.peak));
  std::string line = text;
  if (graphs.step) {
    std::snprintf(text, sizeof text, " (%.2f)", mib(step_bytes(predicted_memory(process, num_microbatches))));
    line += text;
  } else {
    std::snprintf(text, sizeof text, " (%.2f), handed on %.2f", mib(predicted_pools(process, num_microbatches)),
                  mib(total.results));
    line += text;
  }
  return {line};
}

std::vector<std::string> scope_lines(const step::RankModel& model, const step::CapturedGraphs& graphs) {
  std::vector<std::string> lines;
  if (!graphs.partial) return lines;
  for (size_t chunk = 0; chunk < model.stages.size(); ++chunk)
    lines.push_back(" captured in chunk " + std::to_string(chunk) + ": " + format_stage(*model.stages[chunk]));
  return lines;
}

}  // namespace metroplex::forecast

#include "train/graph_report.h"

#include <cstdio>

#include "train/assemble.h"
#include "train/memory_report.h"
#include "train/partial_graphs.h"
#include "train/predict.h"
#include "train/step_graphs.h"

namespace metroplex::train {
namespace {

struct Total {
  int64_t graphs = 0, nodes = 0, graph_bytes = 0, static_bytes = 0;
  cuda::GraphPool::Bytes pool;
};

void add(Total& total, const pipeline::GraphSizes& part) {
  total.graphs += part.graphs;
  total.nodes += part.size.nodes;
  total.graph_bytes += part.size.bytes;
  total.static_bytes += part.static_inputs + part.gradients;
  total.pool.peak += part.pools.peak;
  total.pool.reserved += part.pools.reserved;
}

Total total_of(const Assembly& a) {
  Total total;
  if (a.graphs) {
    const StepGraphs::Sizes sizes = a.graphs->sizes();
    total.graphs = (sizes.training.nodes > 0) + (sizes.evaluation.nodes > 0);
    total.nodes = sizes.training.nodes + sizes.evaluation.nodes;
    total.graph_bytes = sizes.training.bytes + sizes.evaluation.bytes;
    total.static_bytes = sizes.static_inputs;
    total.pool = sizes.pool;
  } else if (a.partial_graphs) {
    const PartialGraphs::Sizes sizes = a.partial_graphs->sizes();
    add(total, sizes.training);
    add(total, sizes.evaluation);
  }
  return total;
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / 1048576; }

}  // namespace

int64_t captured_graphs(const Assembly& a) { return total_of(a).graphs; }

std::vector<std::string> graph_lines(const Assembly& a, int64_t num_microbatches) {
  if (!a.graph_device) return {};
  const Total total = total_of(a);
  char text[256];
  std::snprintf(
      text, sizeof text,
      " rank 0 has captured %lld graphs of %lld operations; MiB: graphs %.2f | static inputs %.2f | pool %.2f, "
      "of it tensors at most %.2f",
      static_cast<long long>(total.graphs), static_cast<long long>(total.nodes), mib(total.graph_bytes),
      mib(total.static_bytes), mib(total.pool.reserved), mib(total.pool.peak));
  std::string line = text;
  if (a.graphs) {
    std::snprintf(text, sizeof text, " (%.2f)", mib(step_bytes(predicted_memory(a, num_microbatches))));
    line += text;
  }
  return {line};
}

}  // namespace metroplex::train

#include "graph/graph.h"

#include "base/error.h"
#include "graph/cuda_graph.h"
#include "graph/tape_graph.h"

namespace metroplex::graph {

std::unique_ptr<GraphDevice> make_graph_device(at::Device device, ReplayWatch* watch) {
  if (device.is_cuda()) return make_cuda_graph_device(make_cuda_graph_calls(), watch);
  MPX_ASSERT(device.is_cpu(), "graphs of the device ", device);
  return std::make_unique<TapeDevice>();
}

void capture(Graph& graph, const std::function<void()>& work) {
  graph.begin();
  try {
    work();
    graph.end();
  } catch (...) {
    graph.abandon();
    throw;
  }
  if (!graph.runs_while_capturing()) graph.replay();
}

}  // namespace metroplex::graph

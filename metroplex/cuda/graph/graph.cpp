#include "cuda/graph/graph.h"

#include "base/error.h"
#include "cuda/graph/tape_graph.h"

namespace metroplex::cuda {

std::unique_ptr<GraphDevice> make_graph_device(at::Device device) {
  MPX_CHECK(device.is_cpu(), "cuda graph", "graphs of a GPU are not there yet");
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

}  // namespace metroplex::cuda

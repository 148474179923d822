#include "cuda/graph/graph.h"

namespace metroplex::cuda {

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

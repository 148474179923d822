#include "graph/cuda_graph.h"

#include "base/error.h"

namespace metroplex::graph {

std::shared_ptr<CudaGraphCalls> make_cuda_graph_calls() {
  base::throw_error("cuda", "this program was built without CUDA; build with --cuda to use a GPU");
}

}  // namespace metroplex::graph

#include "graph/graphed_callable.h"

#include <c10/util/ScopeExit.h>

#include "base/error.h"
#include "graph/graph.h"

namespace metroplex::graph {
namespace {

void copy_in(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  MPX_CHECK(from.size() == to.size(), "cuda graph", from.size(), " inputs for a graph of ", to.size());
  for (size_t i = 0; i < to.size(); ++i) {
    MPX_CHECK(same_form(from[i], to[i]), "cuda graph", "input ", i, " is ", format_form(from[i]),
              ", and the captured one ", format_form(to[i]), "; capture again");
  }
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].defined() && !from[i].is_same(to[i])) to[i].copy_(from[i], /*non_blocking=*/true);
  }
}

}  // namespace

GraphedCallable::GraphedCallable(GraphDevice& device, Callable callable, Tensors inputs, Options options)
    : device_(device),
      callable_(std::move(callable)),
      inputs_(std::move(inputs)),
      options_(std::move(options)),
      pool_(options_.pool ? options_.pool : device.make_pool()),
      graph_(device.make_graph(pool_)) {}

const GraphedCallable::Tensors& GraphedCallable::operator()(const Tensors& inputs) {
  copy_in(inputs, inputs_);
  if (graph_->captured()) {
    graph_->replay();
  } else if (calls_++ < options_.warmup) {
    device_.run_on_capture_stream([&] { outputs_ = callable_(inputs_); });
  } else {
    outputs_.clear();
    if (options_.barrier) options_.barrier();
    capture(*graph_, [&] {
      capturing_ = true;
      const auto over = c10::make_scope_exit([this] { capturing_ = false; });
      outputs_ = callable_(inputs_);
    });
    if (options_.barrier) options_.barrier();
  }
  return outputs_;
}

void GraphedCallable::reset() {
  graph_->reset();
  outputs_.clear();
}

}  // namespace metroplex::graph

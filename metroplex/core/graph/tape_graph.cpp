#include "graph/tape_graph.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"

namespace metroplex::graph {

void TapeGraph::begin() { recorder_.begin(pool_); }

void TapeGraph::end() {
  tape_ = recorder_.end();
  captured_ = true;
}

void TapeGraph::abandon() noexcept {
  recorder_.abandon();
  reset();
}

void TapeGraph::replay() {
  MPX_ASSERT(captured_, "a graph is replayed that has not been captured");
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  tape_.replay();
}

void TapeGraph::reset() {
  tape_ = {};
  captured_ = false;
}

std::unique_ptr<Graph> TapeDevice::make_graph(std::shared_ptr<GraphPool> pool) {
  auto tape_pool = std::dynamic_pointer_cast<TapePool>(std::move(pool));
  MPX_ASSERT(tape_pool, "a pool of another device");
  return std::make_unique<TapeGraph>(recorder_, std::move(tape_pool));
}

}  // namespace metroplex::graph

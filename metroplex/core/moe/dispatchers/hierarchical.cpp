// Rows for another node are first collected, within the own node, on the rank with the destination's index.
#include "moe/dispatcher.h"

namespace metroplex::moe {

std::unique_ptr<Dispatcher> make_hierarchical(DispatcherSpec spec) {
  return make_exchanging(std::move(spec), kExchangeByNode);
}

}  // namespace metroplex::moe

// Rows for another node first meet, inside their own, at the rank in the place of the one they go to.
#include "moe/dispatcher.h"

namespace metroplex::moe {

std::unique_ptr<Dispatcher> make_hierarchical(DispatcherSpec spec) {
  return make_exchanging(std::move(spec), kExchangeByNode);
}

}  // namespace metroplex::moe

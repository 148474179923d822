// Sends each row directly to the ranks of its expert.
#include "moe/dispatcher.h"

namespace metroplex::moe {

std::unique_ptr<Dispatcher> make_all_to_all(DispatcherSpec spec) {
  return make_exchanging(std::move(spec), kDirectExchange);
}

}  // namespace metroplex::moe

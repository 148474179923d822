// What the dispatchers that exchange rows share: rows sorted by rank and expert, sent, and sorted by expert again.
#pragma once

#include <memory>

#include "moe/dispatcher.h"
#include "moe/exchange.h"

namespace metroplex::moe {

// `how` outlives it.
std::unique_ptr<Dispatcher> make_exchanging(DispatcherSpec spec, const RowExchange& how);

}  // namespace metroplex::moe

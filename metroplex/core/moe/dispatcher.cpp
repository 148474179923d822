#include "moe/dispatcher.h"

#include "base/error.h"
#include "config/experts.h"

namespace metroplex::moe {

// Each function is defined in the file of its name in dispatchers/.
using MakeDispatcher = std::unique_ptr<Dispatcher>(DispatcherSpec spec);
std::unique_ptr<Dispatcher> make_echo(DispatcherSpec spec, std::unique_ptr<Dispatcher> rows);
MakeDispatcher make_local, make_all_gather, make_all_to_all, make_hierarchical, make_static_buffer;

namespace {

struct Row {
  config::TokenDispatcher type;
  MakeDispatcher* make;
};

constexpr Row kDispatchers[] = {{config::TokenDispatcher::local, make_local},
                                {config::TokenDispatcher::allgather, make_all_gather},
                                {config::TokenDispatcher::alltoall, make_all_to_all},
                                {config::TokenDispatcher::hierarchical, make_hierarchical},
                                {config::TokenDispatcher::static_buffer, make_static_buffer}};

}  // namespace

int64_t DispatcherSpec::capacity(int64_t tokens) const {
  return model.has_capacity() ? config::expert_capacity(model, tokens) : 0;
}

std::unique_ptr<Dispatcher> make_dispatcher(DispatcherSpec spec) {
  const config::TokenDispatcher type = config::token_dispatcher(spec.model, spec.experts.experts.size());
  const bool replicas = spec.model.moe_enable_echo;
  std::unique_ptr<Dispatcher> rows = make_dispatcher(type, spec);
  return replicas ? make_echo(std::move(spec), std::move(rows)) : std::move(rows);
}

std::unique_ptr<Dispatcher> make_dispatcher(config::TokenDispatcher type, DispatcherSpec spec) {
  for (const Row& row : kDispatchers) {
    if (row.type != type) continue;
    spec.model.moe_token_dispatcher_type = type;
    return row.make(std::move(spec));
  }
  MPX_ASSERT(false, "an unresolved token dispatcher: ", config::text_of(type));
}

}  // namespace metroplex::moe

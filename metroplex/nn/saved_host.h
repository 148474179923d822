// Offload of activations to the host: what lies on a GPU is copied to pinned memory and back on a stream of its own,
// beside the computation, which waits only for what it reads. What lies in the host's memory already stays there.
#pragma once

#include <memory>

#include "nn/saved.h"

namespace metroplex::nn {

std::shared_ptr<ActivationStore> make_host_store();

}  // namespace metroplex::nn

// Offload of activations to the host: what lies on a GPU is copied to pinned memory and back, in the order of the
// current stream. What lies in the host's memory already stays there.
#pragma once

#include <memory>

#include "nn/saved.h"

namespace metroplex::nn {

std::shared_ptr<ActivationStore> make_host_store();

}  // namespace metroplex::nn

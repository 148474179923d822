// Offload of activations on the meta device: nothing is written, and bytes are dropped and made again at the moments
// at which the store of the real device would.
#pragma once

#include <memory>

#include "config/memory.h"
#include "nn/saved.h"

namespace metroplex::nn {

// Null where nothing is offloaded.
std::shared_ptr<ActivationStore> make_meta_store(config::Offload offload, const cuda::Target& target);

}  // namespace metroplex::nn

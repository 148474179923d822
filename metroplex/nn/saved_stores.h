// Offload of activations to the host: GPU tensors are copied to pinned memory and back on a side stream, overlapped
// with computation, which waits only for what it reads. CPU tensors stay where they are.
#pragma once

#include <memory>
#include <string>

#include "config/memory.h"
#include "nn/saved.h"

namespace metroplex::nn {

std::shared_ptr<ActivationStore> make_host_store();

// Offload of activations to an unlinked file: written after forward, prefetched by the kernel's readahead, and read
// back before backward. Written pages stay in the page cache until they are on disk and the kernel wants the memory.
// Space is allocated before anything is written, so that a full disk gives a clear error.

// An empty directory: the system's temporary folder.
std::shared_ptr<ActivationStore> make_file_store(const std::string& directory);

// Offload of activations on the meta device, for the memory prediction: nothing is copied, and storages are freed and
// allocated again when the store of the real device would do so.

// Null where nothing is offloaded.
std::shared_ptr<ActivationStore> make_meta_store(config::Offload offload, const cuda::Target& target);

}  // namespace metroplex::nn

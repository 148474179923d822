// Offload of activations to the host: GPU tensors are copied to pinned memory and back on a side stream, overlapped
// with computation. Computation waits only for the tensors it reads. CPU tensors are not moved.
#pragma once

#include <memory>
#include <string>

#include "config/memory.h"
#include "nn/saved.h"

namespace metroplex::nn {

std::shared_ptr<ActivationStore> make_host_store();

// Offload of activations to an unlinked file: written after forward, prefetched by the kernel's readahead, and read
// back before backward. Written pages stay in the page cache until they are on disk and the kernel reclaims them.
// Space is allocated before each write, so that a full disk gives a clear error.
//
// An empty directory selects the system's temporary folder.
std::shared_ptr<ActivationStore> make_file_store(const std::string& directory);

// Offload of activations on the meta device, for the memory prediction: nothing is copied. Storages are freed and
// allocated as by the real store.

// Returns null if nothing is offloaded.
std::shared_ptr<ActivationStore> make_meta_store(config::Offload offload, const device::Target& target);

}  // namespace metroplex::nn

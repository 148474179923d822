// Offload of activations to a file without a name: written after forward, read ahead by the system and then read back
// before backward. Written bytes are the system's cache, which it may drop once they are on the disk. Space is taken
// before anything is written, so a full disk is an error with a name.
#pragma once

#include <memory>
#include <string>

#include "nn/saved.h"

namespace metroplex::nn {

// An empty directory: the system's temporary folder.
std::shared_ptr<ActivationStore> make_file_store(const std::string& directory);

}  // namespace metroplex::nn

// Checkpoints of other programs in the folder where one of ours was looked for: named, not read.
#pragma once

#include <string>

#include "files/file_system.h"

namespace metroplex::checkpoint {

// "Megatron-LM's torch_dist format" or the like where `directory` is such a checkpoint or a folder of them, told by
// the names in it alone; "" where it is not, and where a manifest of ours is there.
std::string foreign_format(files::FileSystem& disk, const std::string& directory);

}  // namespace metroplex::checkpoint

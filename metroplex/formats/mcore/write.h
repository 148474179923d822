// Writes checkpoints that Megatron-LM loads: torch_dist, as megatron.core 0.16.1 reads it with any parallel layout.
// Each of our tensors is one chunk. Layers have their numbers in the names (non_homogeneous_layers), and the state of
// AdamW is that of the distributed optimizer with --dist-ckpt-optim-fully-reshardable. Megatron's layers with and
// without Transformer Engine have different names for some norms: both names refer to the same chunk.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/save.h"
#include "checkpoint/tensor_source.h"
#include "files/file_system.h"

namespace metroplex::mcore {

// Writes a new folder atomically: iter_NNNNNNN (release for iteration 0) and latest_checkpointed_iteration.txt.
// `state`: of the run that `source` belongs to. Needs kRewriteSlabBytes of memory in addition to names and shapes.
// Returns notes about state that is not converted. Throws base::Error if `folder` exists, or if Megatron's GPTModel
// differs from the model in a key or a tensor.
std::vector<std::string> write_checkpoint(files::FileSystem& disk, checkpoint::TensorSource& source,
                                          const checkpoint::RunState& state, bool weights_only,
                                          const std::string& folder);

}  // namespace metroplex::mcore

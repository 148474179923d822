// All tensors of a source (one of our checkpoints, or a reader of another format) as a new checkpoint, without
// tensors in memory: from another number of files, from another format, or the weights alone.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "checkpoint/save.h"
#include "checkpoint/tensor_source.h"

namespace metroplex::checkpoint {

using OpenSource = std::function<std::unique_ptr<TensorSource>()>;

inline constexpr int64_t kRewriteSlabBytes = int64_t{4} << 20;

// Saves as `ranks` ranks would that hold equal shares of the bytes, tensor after tensor: a tensor lies in one file,
// or in neighbours that divide its rows. Each rank is a thread with a source of its own and kRewriteSlabBytes.
// `wanted`: whether to take a tensor. Throws base::Error where the save fails.
SaveResult rewrite(files::FileSystem& disk, const OpenSource& open, const std::string& root, const RunState& state,
                   int ranks, const std::function<bool(const files::TensorForm&)>& wanted);

}  // namespace metroplex::checkpoint

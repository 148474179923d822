// Writes all tensors of a source (a checkpoint or a reader of another format) as a new checkpoint without holding
// full tensors in memory. It changes the number of files or the format, or extracts the weights.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "checkpoint/save.h"
#include "checkpoint/tensor_source.h"

namespace metroplex::checkpoint {

using OpenSource = std::function<std::unique_ptr<TensorSource>()>;

inline constexpr int64_t kRewriteSlabBytes = int64_t{4} << 20;

// Writes the files that `ranks` ranks with equal shares of the bytes would write, tensor after tensor. A tensor is
// in one file, or its rows are divided over adjacent files. Each rank is a thread with its own source and a buffer
// of kRewriteSlabBytes. `wanted` selects tensors. Throws base::Error if the save fails.
SaveResult rewrite(files::FileSystem& disk, const OpenSource& open, const std::string& root, const RunState& state,
                   int ranks, const std::function<bool(const files::TensorForm&)>& wanted);

// Passes the bytes of rows [from, to) of a tensor to `sink`, at most kRewriteSlabBytes or one row at a time. A scalar
// is one row.
void read_rows(TensorSource& source, const files::TensorForm& tensor, int64_t from, int64_t to, const Sink& sink);
// Returns the number of rows.
int64_t row_count(const files::TensorForm& tensor);

}  // namespace metroplex::checkpoint

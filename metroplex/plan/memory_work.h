// What a block allocates, frees and accumulates as it runs, in the order of nn/ and models/: a list of steps, from
// which plan/memory_replay.h knows the most that a rank holds inside an action. Tensors of tokens and the products of
// weight gradients are on it; vectors of one row, the indices of tokens and what an operator of libtorch uses inside
// (its attention's blocks) are not.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "plan/memory_sizes.h"

namespace metroplex::plan {

struct RankParam;
struct RankBlock;

enum class WorkKind { bytes, open, use };  // `open`: a gradient is about to be added, `use`: it has been

struct WorkStep {
  WorkKind kind = WorkKind::bytes;
  int64_t bytes = 0;  // allocated; negative: freed
  size_t param = 0;   // of open and use, an index into RankModel::params
};

// Forward begins with the input there and ends with what the block keeps (SavedBytes) and its output. Backward begins
// with what is saved and with the gradient of the output, and ends with that gradient and the input's.
struct Work {
  std::vector<WorkStep> forward, backward;
};

struct WorkRequest {
  const config::Config* config = nullptr;
  MemorySizes sizes{};
  const std::vector<RankParam>* params = nullptr;
  const std::vector<size_t>* own = nullptr;  // what the block reads, in the order in which it lists them
};

Work embedding_work(const WorkRequest& request);
Work layer_work(const WorkRequest& request);
Work top_query_work(const WorkRequest& request);
Work head_work(const WorkRequest& request, bool final_norm);

}  // namespace metroplex::plan

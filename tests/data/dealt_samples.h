// Two of Megatron's samplers that recorded batches hold and training does not use, as whole lists of indices.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "data/sampler.h"

namespace metroplex::test {

// Full validation: every sample once, sample i on rank i mod dp_size, one at a time.
inline std::vector<int64_t> full_validation_indices(int64_t total_samples, int64_t dp_index, int64_t dp_size) {
  std::vector<int64_t> indices;
  for (int64_t i = dp_index; i < total_samples; i += dp_size) indices.push_back(i);
  return indices;
}

// A whole global batch of one rank: samples [first, first + global_batch_size) dealt out micro-batch by micro-batch.
// Uses micro_batch_size, dp_index and dp_size. Throws base::Error when they do not divide the global batch.
inline std::vector<int64_t> global_batch_indices(int64_t first, int64_t global_batch_size,
                                                 const data::SamplerOptions& options) {
  const int64_t step = options.micro_batch_size * options.dp_size;
  MPX_CHECK(step > 0 && global_batch_size % step == 0, "data", "global batch ", global_batch_size,
            " is not a multiple of micro-batch * data-parallel = ", step);
  std::vector<int64_t> indices;
  for (int64_t start = first; start < first + global_batch_size; start += step) {
    for (int64_t i = 0; i < options.micro_batch_size; ++i)
      indices.push_back(start + options.dp_index * options.micro_batch_size + i);
  }
  return indices;
}

}  // namespace metroplex::test

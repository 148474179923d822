// Parts of recorded Megatron batches that training does not use: two samplers as full lists of indices, an incomplete
// last batch, and sample counts with settings that we do not have.
#pragma once

#include <algorithm>
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

// A full global batch of one rank: samples [first, first + global_batch_size) distributed micro-batch by micro-batch.
// Uses micro_batch_size, dp_index and dp_size. Throws base::Error if they do not divide the global batch.
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

// Remaining batches in the epoch of a cyclic sampler.
inline int64_t batches_left(const data::SamplerOptions& options) {
  const int64_t step = options.micro_batch_size * options.dp_size, active = options.total_samples / step * step;
  return (active - options.consumed_samples % active) / step;
}

// Samples that a single pass omits: the rank's part of the last samples if they do not fill every rank.
inline std::vector<int64_t> partial_batch(const data::SamplerOptions& options) {
  const int64_t step = options.micro_batch_size * options.dp_size;
  const int64_t rest = options.consumed_samples + (options.total_samples - options.consumed_samples) / step * step;
  const int64_t begin = rest + options.dp_index * options.micro_batch_size;
  std::vector<int64_t> indices;
  for (int64_t i = begin; i < std::min(begin + options.micro_batch_size, options.total_samples); ++i)
    indices.push_back(i);
  return indices;
}

struct MegatronSampleCounts : data::SampleCountOptions {
  int64_t start_eval_at_iter = 0, iteration = 0;
  std::vector<int64_t> phase_transition_iterations;

  bool plain() const { return start_eval_at_iter == 0 && phase_transition_iterations.empty(); }
  data::SampleCounts counts() const {
    const int64_t evaluation = eval_iters * (eval_global_batch_size > 0 ? eval_global_batch_size : global_batch_size);
    data::SampleCounts out = data::sample_counts(*this);
    out.test = evaluation;
    int64_t begin = 0, end = out.train;  // of the phase that contains `iteration`
    for (const int64_t transition : phase_transition_iterations) {
      if (transition <= iteration) begin = std::max(begin, transition * global_batch_size);
      else end = std::min(end, transition * global_batch_size);
    }
    out.train = end - begin;
    const int64_t points =
        eval_interval > 0 ? train_iters / eval_interval + 1 - start_eval_at_iter / eval_interval : 0;
    out.valid = full_validation ? -1 : (skip_train ? 1 : std::max<int64_t>(points, 0)) * evaluation;
    return out;
  }
};

}  // namespace metroplex::test

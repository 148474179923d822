#include "data/sampler.h"

#include <algorithm>

#include "base/error.h"
#include "data/numpy_random.h"

namespace metroplex::data {

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  const auto& o = options_;
  const int64_t step = o.micro_batch_size * o.dp_size;
  MPX_CHECK(o.total_samples > 0, "data", "no sample to consume: the dataset has ", o.total_samples);
  MPX_CHECK(o.micro_batch_size > 0, "data", "micro-batch size ", o.micro_batch_size, " must be positive");
  MPX_ASSERT(o.dp_size > 0 && o.dp_index >= 0 && o.dp_index < o.dp_size, "data rank ", o.dp_index, " of ", o.dp_size);
  MPX_CHECK(o.consumed_samples >= 0, "data", "consumed samples ", o.consumed_samples, " must not be negative");
  if (o.type == SamplerType::single) {
    MPX_CHECK(o.consumed_samples < o.total_samples, "data", "no samples left to consume: ", o.consumed_samples, ", ",
              o.total_samples,
              "; the data has been read to its end: train on more of it, or with dataloader_type cyclic");
    position_ = o.consumed_samples;
    return;
  }
  const int64_t active = o.total_samples / step * step;  // an epoch is whole batches of all ranks
  MPX_CHECK(active > 0, "data", "the dataset has ", o.total_samples,
            " samples, one batch of all data-parallel ranks takes ", step,
            "; give more data or a smaller micro-batch");
  epoch_ = o.consumed_samples / active;
  const int64_t in_epoch = o.consumed_samples % active;
  MPX_CHECK(in_epoch % step == 0, "data", "consumed samples ", o.consumed_samples, ": the ", in_epoch,
            " of this epoch are not a multiple of micro-batch * data-parallel = ", step);
  start_epoch();
  if (o.data_sharding) {
    position_ = in_epoch / o.dp_size;
  } else {
    // What the ranks together have taken so far is dropped, and the rest dealt out anew: so a resumed run may have
    // another number of ranks.
    std::vector<int64_t> order = torch_randperm(o.total_samples / o.micro_batch_size * o.micro_batch_size,
                                                o.seed + static_cast<uint64_t>(epoch_));
    epoch_order_.clear();
    const int64_t own = (active - in_epoch) / o.dp_size;
    for (int64_t i = 0; i < own; ++i)
      epoch_order_.push_back(order[static_cast<size_t>(in_epoch + o.dp_index + i * o.dp_size)]);
  }
}

void Sampler::start_epoch() {
  const auto& o = options_;
  const int64_t step = o.micro_batch_size * o.dp_size, own = o.total_samples / step * o.micro_batch_size;
  const uint64_t seed = o.seed + static_cast<uint64_t>(epoch_);
  position_ = 0;
  if (o.data_sharding) {
    epoch_order_ = torch_randperm(own, seed);
    for (int64_t& index : epoch_order_) index += o.dp_index * own;
    return;
  }
  const std::vector<int64_t> order = torch_randperm(o.total_samples / o.micro_batch_size * o.micro_batch_size, seed);
  epoch_order_.clear();
  for (int64_t i = 0; i < own; ++i) epoch_order_.push_back(order[static_cast<size_t>(o.dp_index + i * o.dp_size)]);
}

bool Sampler::at_epoch_end() const {
  return options_.type == SamplerType::cyclic && position_ >= static_cast<int64_t>(epoch_order_.size());
}

bool Sampler::next(std::vector<int64_t>& indices) {
  indices.clear();
  if (options_.type == SamplerType::single) return next_single(indices);
  if (at_epoch_end()) {
    ++epoch_;
    start_epoch();
  }
  const auto begin = epoch_order_.begin() + position_;
  indices.assign(begin, begin + options_.micro_batch_size);
  position_ += options_.micro_batch_size;
  return true;
}

bool Sampler::next_single(std::vector<int64_t>& indices) {
  const auto& o = options_;
  const int64_t step = o.micro_batch_size * o.dp_size, left = o.total_samples - position_;
  if (left <= 0 || (left < step && o.drop_last)) return false;
  const int64_t begin = position_ + o.dp_index * o.micro_batch_size;
  const int64_t end = std::min(begin + o.micro_batch_size, o.total_samples);
  for (int64_t i = begin; i < end; ++i) indices.push_back(i);
  position_ += step;
  return true;
}

SampleCounts sample_counts(const SampleCountOptions& o) {
  const int64_t eval_batch = o.eval_global_batch_size > 0 ? o.eval_global_batch_size : o.global_batch_size;
  const int64_t total = o.train_samples > 0 ? o.train_samples : o.train_iters * o.global_batch_size;
  SampleCounts counts{total, 0, o.eval_iters * eval_batch};
  if (!o.phase_transition_iterations.empty()) {  // only the samples of the phase that `iteration` is in
    int64_t begin = 0, end = total;
    for (const int64_t iteration : o.phase_transition_iterations) {
      const int64_t at = iteration * o.global_batch_size;
      if (iteration <= o.iteration) begin = std::max(begin, at);
      else end = std::min(end, at);
    }
    counts.train = end - begin;
  }
  if (o.full_validation) {
    counts.valid = -1;
  } else if (o.skip_train) {
    counts.valid = o.eval_iters * eval_batch;
  } else if (o.eval_interval > 0) {
    const int64_t points = o.train_iters / o.eval_interval + 1 - o.start_eval_at_iter / o.eval_interval;
    counts.valid = std::max<int64_t>(points, 0) * o.eval_iters * eval_batch;
  }
  return counts;
}

}  // namespace metroplex::data

#include "data/sampler.h"

#include <algorithm>

#include "base/error.h"
#include "data/numpy_random.h"

namespace metroplex::data {

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  const auto& o = options_;
  const int64_t step = o.micro_batch_size * o.dp_size;
  MPX_CHECK(o.total_samples > 0, "data", "there are no samples to consume: the size of the dataset is ",
            o.total_samples);
  MPX_CHECK(o.micro_batch_size > 0, "data", "micro-batch size ", o.micro_batch_size, " must be positive");
  MPX_ASSERT(o.dp_size > 0 && o.dp_index >= 0 && o.dp_index < o.dp_size, "data rank ", o.dp_index, " of ", o.dp_size);
  MPX_CHECK(o.consumed_samples >= 0, "data", "consumed samples ", o.consumed_samples, " must not be negative");
  if (o.type == SamplerType::single) {
    MPX_CHECK(o.consumed_samples < o.total_samples, "data", "no samples are left to consume: ", o.consumed_samples,
              ", ", o.total_samples, "; all data has been read: add data, or set data.dataloader_type = cyclic");
    position_ = o.consumed_samples;
    return;
  }
  const int64_t active = o.total_samples / step * step;  // an epoch consists of full batches of all ranks
  MPX_CHECK(active > 0, "data", "the dataset has ", o.total_samples,
            " samples, but one batch of all data-parallel ranks takes ", step,
            "; use more data or a smaller micro-batch");
  epoch_ = o.consumed_samples / active;
  const int64_t in_epoch = o.consumed_samples % active;
  MPX_CHECK(in_epoch % step == 0, "data", "consumed samples ", o.consumed_samples, ": the ", in_epoch,
            " of this epoch are not a multiple of micro-batch * data-parallel = ", step);
  start_epoch();
  if (o.data_sharding) {
    position_ = in_epoch / o.dp_size;
  } else {
    // Drops the samples that all ranks have consumed and distributes the rest again. A resumed run may therefore have
    // another number of ranks.
    std::vector<int64_t> order =
        torch_randperm(o.total_samples / o.micro_batch_size * o.micro_batch_size, static_cast<uint64_t>(epoch_));
    epoch_order_.clear();
    const int64_t own = (active - in_epoch) / o.dp_size;
    for (int64_t i = 0; i < own; ++i)
      epoch_order_.push_back(order[static_cast<size_t>(in_epoch + o.dp_index + i * o.dp_size)]);
  }
}

void Sampler::start_epoch() {
  const auto& o = options_;
  const int64_t step = o.micro_batch_size * o.dp_size, own = o.total_samples / step * o.micro_batch_size;
  const auto seed = static_cast<uint64_t>(epoch_);
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

bool Sampler::next(std::vector<int64_t>& indices) {
  indices.clear();
  const int64_t micro = options_.micro_batch_size;
  if (options_.type == SamplerType::single) {
    const int64_t step = micro * options_.dp_size, begin = position_ + options_.dp_index * micro;
    if (options_.total_samples - position_ < step) return false;
    for (int64_t i = begin; i < begin + micro; ++i) indices.push_back(i);
    position_ += step;
    return true;
  }
  if (position_ >= static_cast<int64_t>(epoch_order_.size())) {
    ++epoch_;
    start_epoch();
  }
  const auto begin = epoch_order_.begin() + position_;
  indices.assign(begin, begin + micro);
  position_ += micro;
  return true;
}

SampleCounts sample_counts(const SampleCountOptions& options) {
  const int64_t evaluation = options.eval_iters * (options.eval_global_batch_size > 0 ? options.eval_global_batch_size
                                                                                      : options.global_batch_size);
  SampleCounts counts{
      options.train_samples > 0 ? options.train_samples : options.train_iters * options.global_batch_size, 0,
      evaluation};
  if (options.skip_train) {
    counts.valid = evaluation;
  } else if (options.eval_interval > 0) {
    counts.valid = (options.train_iters / options.eval_interval + 1) * evaluation;
  }
  if (options.full_validation) counts.valid = -1;
  return counts;
}

}  // namespace metroplex::data

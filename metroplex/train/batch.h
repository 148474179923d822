// From samples on the host to the tensors of a microbatch. Only the first rank of a tensor-parallel group reads; the
// others receive over a communicator of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/group.h"
#include "data/loader.h"
#include "nn/microbatch.h"

namespace metroplex::train {

// What a source of microbatches gives for one microbatch, on the reading rank.
struct HostBatch {
  std::vector<data::Sample> samples;
  int64_t first_sample = 0;  // global number of samples[0]
  int64_t stride = 1;        // from one sample to the next
};

struct SampleNumbers {
  int64_t first = 0, stride = 1;
};

// Stacks the samples. float_type is that of the loss mask (float or double).
nn::Microbatch stack_samples(const HostBatch& batch, at::ScalarType float_type);

// Collective over `group` (tp): the first rank passes its batch, or nothing when its data has ended; every rank gets
// the same microbatch, or nothing.
std::optional<nn::Microbatch> broadcast_batch(const std::optional<nn::Microbatch>& mine, const comm::Group& group,
                                              at::ScalarType float_type);

// Microbatches of one data-parallel rank in order: loader + numbering + broadcast.
class BatchStream {
 public:
  // `loader` is null on ranks that only receive.
  BatchStream(std::unique_ptr<data::Loader> loader, comm::Group batch_group, at::ScalarType float_type)
      : loader_(std::move(loader)), group_(std::move(batch_group)), float_type_(float_type) {}
  // Collective over the batch group. `numbers` are those of the microbatch's samples in the order of the run, the key
  // of dropout.
  std::optional<nn::Microbatch> next(const SampleNumbers& numbers);

 private:
  std::unique_ptr<data::Loader> loader_;
  comm::Group group_;
  at::ScalarType float_type_;
};

}  // namespace metroplex::train

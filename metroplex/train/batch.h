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

// Stacks the samples, in host memory. float_type is that of the loss mask (float or double).
nn::Microbatch stack_samples(const HostBatch& batch, at::ScalarType float_type);

// The batch on the device that computes it, through pinned memory, without waiting; on the CPU the batch itself.
nn::Microbatch on_device(const nn::Microbatch& host, at::Device device);

// Collective over `group` (tp): the first rank passes its batch, in host memory, or nothing when its data has ended;
// every rank gets the same microbatch on `device`, or nothing. The numbers travel between devices, their shape
// between hosts.
std::optional<nn::Microbatch> broadcast_batch(const std::optional<nn::Microbatch>& mine, const comm::Group& group,
                                              at::ScalarType float_type, at::Device device = at::kCPU);

// Microbatches of one data-parallel rank in order: loader + numbering + broadcast.
class BatchStream {
 public:
  // `loader` is null on ranks that only receive. Layers on a GPU cannot refuse what is outside the vocabulary (that
  // would make the host wait): there the reading rank does, against `vocab_size`.
  BatchStream(std::unique_ptr<data::Loader> loader, comm::Group batch_group, at::ScalarType float_type,
              at::Device device = at::kCPU, int64_t vocab_size = 0)
      : loader_(std::move(loader)),
        group_(std::move(batch_group)),
        float_type_(float_type),
        device_(device),
        vocab_size_(vocab_size) {}
  // Collective over the batch group. `numbers` are those of the microbatch's samples in the order of the run, the key
  // of dropout.
  std::optional<nn::Microbatch> next(const SampleNumbers& numbers);

 private:
  std::unique_ptr<data::Loader> loader_;
  comm::Group group_;
  at::ScalarType float_type_;
  at::Device device_;
  int64_t vocab_size_;
};

}  // namespace metroplex::train

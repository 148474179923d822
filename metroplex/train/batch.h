// From samples on the host to the tensors of a microbatch. Only the first rank of a tensor-parallel group reads; the
// others receive over a communicator of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/group.h"
#include "config/attention.h"
#include "data/loader.h"
#include "nn/microbatch.h"
#include "train/hybrid_batch.h"
#include "train/sequence_part.h"

namespace metroplex::train {

// Which samples of the run a microbatch has, and in which step: what dropout draws by.
struct SampleNumbers {
  int64_t first = 0, stride = 1;  // global number of the first, and from one to the next
  int64_t step = -1;              // from 0; must be given
};

// What a source of microbatches gives for one microbatch, on the reading rank.
struct HostBatch {
  std::vector<data::Sample> samples;
  SampleNumbers numbers;
  int64_t vocab_size = 0;
  config::DocumentBound documents;
};

// Stacks the samples, in host memory. float_type is that of the loss mask (float or double). A token outside the
// vocabulary is refused here, as a base::Error that names its sample: a layer would have to wait for the device. So
// are more documents than there must be at most.
nn::Microbatch stack_samples(const HostBatch& batch, at::ScalarType float_type);

// Of microbatches for a device: a CPU has no use for offsets of documents.
config::DocumentBound document_bound_on(const config::Config& config, at::Device device);

// Of all tensors of the microbatch.
int64_t batch_bytes(const nn::Microbatch& batch);

// The batch on the device that computes it, through pinned memory, without waiting; on the CPU the batch itself.
nn::Microbatch on_device(const nn::Microbatch& host, at::Device device);

// Collective over `group` (tp): the first rank passes its microbatches of a step, in host memory, `most` or, at the
// end of its data, fewer; every rank gets the same ones on `device`. Tensors are broadcast between devices; what
// hosts know of them (shapes and row runs) between hosts, once a step.
std::vector<nn::Microbatch> broadcast_batches(const std::vector<nn::Microbatch>& mine, int64_t most,
                                              const comm::Group& group, at::ScalarType float_type,
                                              at::Device device = at::kCPU);

// Microbatches of one data-parallel rank in order: loader + numbering + cut + broadcast. Of a context-parallel group
// each rank reads whole samples and keeps its part. With hybrid context parallelism all ranks of dp x cp read the
// whole global batch.
struct BatchForm {
  int64_t vocab_size = 0;
  at::ScalarType float_type = at::kFloat;
  at::Device device = at::kCPU;
  SequenceParts parts = {};
  config::DocumentBound documents = {};
  std::optional<HybridParts> hybrid = std::nullopt;
};
class BatchStream {
 public:
  // `loader` is null on ranks that only receive.
  BatchStream(std::unique_ptr<data::Loader> loader, comm::Group batch_group, BatchForm form)
      : loader_(std::move(loader)), group_(std::move(batch_group)), form_(std::move(form)) {}
  // Collective over the batch group: the microbatches of a step, fewer where the data ended. `numbers` are those of
  // their samples in the order of the run; with hybrid context parallelism of all samples of the global batch, which
  // give any number of microbatches, and none where the data ended.
  std::vector<nn::Microbatch> next(const std::vector<SampleNumbers>& numbers);

 private:
  std::unique_ptr<data::Loader> loader_;
  comm::Group group_;
  BatchForm form_;
};

}  // namespace metroplex::train

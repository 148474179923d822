// Turns host samples into the tensors of a microbatch. Only the first rank of a tensor-parallel group reads data; the
// other ranks receive it over a dedicated communicator.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/group.h"
#include "config/attention.h"
#include "data/loader.h"
#include "nn/microbatch.h"
#include "step/hybrid_batch.h"
#include "step/sequence_part.h"

namespace metroplex::step {

// Global numbers of a microbatch's samples and its step. Dropout masks are a function of them.
struct SampleNumbers {
  int64_t first = 0, stride = 1;  // global number of the first sample; increment to the next
  int64_t step = -1;              // from 0; must be set
};

struct HostBatch {
  std::vector<data::Sample> samples;
  SampleNumbers numbers;
  int64_t vocab_size = 0;
  config::DocumentBound documents;
};

// Stacks the samples in host memory. float_type is the dtype of the loss mask (float or double). Throws
// base::Error("data") for a token outside the vocabulary, since a layer could report it only after a device sync.
// With documents.must_fit, also throws if samples average more than documents.per_sample documents.
nn::Microbatch stack_samples(const HostBatch& batch, at::ScalarType float_type);

// The document bound of microbatches on `device`. Empty on CPU, where kernels need no document offsets.
config::DocumentBound document_bound_on(const config::Config& config, at::Device device);

int64_t batch_bytes(const nn::Microbatch& batch);

// Copies the batch to `device` through pinned memory without synchronizing. On CPU, returns the batch itself.
nn::Microbatch on_device(const nn::Microbatch& host, at::Device device);

// Collective over `group` (tp). The first rank passes its microbatches of a step in host memory: `most` of them, or
// fewer at the end of its data. Every rank receives the same microbatches on `device`. Tensors are broadcast between
// devices; shapes and row runs are broadcast between hosts, once per step.
std::vector<nn::Microbatch> broadcast_batches(const std::vector<nn::Microbatch>& mine, int64_t most,
                                              const comm::Group& group, at::ScalarType float_type,
                                              at::Device device = at::kCPU);

// The microbatches of one data-parallel rank in order: load, number, split and broadcast. Each rank of a
// context-parallel group reads whole samples and keeps its own rows. With hybrid context parallelism, all ranks of dp
// x cp read the whole global batch.
struct BatchForm {
  int64_t vocab_size = 0;
  at::ScalarType float_type = at::kFloat;
  at::Device device = at::kCPU;
  SequenceSharding parts = {};
  config::DocumentBound documents = {};
  std::optional<HybridSharding> hybrid = std::nullopt;
};
class BatchStream {
 public:
  // `loader` is null on ranks that only receive.
  BatchStream(std::unique_ptr<data::Loader> loader, comm::Group batch_group, BatchForm form)
      : loader_(std::move(loader)), group_(std::move(batch_group)), form_(std::move(form)) {}
  // Collective over the batch group. Returns the microbatches of a step, fewer at the end of the data. `numbers` are
  // the sample numbers of each microbatch, in run order. With hybrid context parallelism, `numbers` covers all
  // samples of the global batch and the number of microbatches varies; empty at the end of the data.
  std::vector<nn::Microbatch> next(const std::vector<SampleNumbers>& numbers);

 private:
  std::unique_ptr<data::Loader> loader_;
  comm::Group group_;
  BatchForm form_;
};

}  // namespace metroplex::step

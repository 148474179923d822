// Main gradients in contiguous buckets, in reverse order of the parameters, so that the bucket whose gradients are
// final first is reduced over the data-parallel ranks while backward still runs. A gradient is final when all its
// uses of the step (segments that share the parameter x microbatches) have been accumulated.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/collectives.h"
#include "comm/group.h"
#include "nn/param.h"

namespace metroplex::optim {

struct GradBufferOptions {
  at::ScalarType dtype = at::kFloat;
  int64_t bucket_size = 0;  // elements; 0: plan::default_bucket_size
  bool overlap = true;      // reduce a bucket as soon as it is ready; else all of them in finish()
  bool average = true;      // divide by the number of data-parallel ranks (off for a per-token loss)
};

class GradBuffer {
 public:
  // Sets main_grad and on_use of every parameter; `params` outlive the buffer.
  GradBuffer(std::vector<nn::Param*> params, comm::Group dp, GradBufferOptions options);
  ~GradBuffer();
  GradBuffer(const GradBuffer&) = delete;
  GradBuffer& operator=(const GradBuffer&) = delete;

  // Zeroes all gradients and arms the counters for a step of this many microbatches.
  void begin_step(int64_t num_microbatches);
  // Collective over dp, once a step: reduces what is still unreduced and waits. Afterwards main_grad is final.
  // Throws when a parameter has seen fewer uses than it declared.
  void finish();

  const at::Tensor& flat() const { return flat_; }
  int64_t num_buckets() const { return static_cast<int64_t>(buckets_.size()); }

 private:
  struct Bucket {
    at::Tensor grads;  // a slice of flat_
    int64_t params = 0, waiting = 0;
    bool reduced = false;
    comm::Handle handle;
  };
  void used(size_t param);
  void reduce(Bucket& bucket);

  std::vector<nn::Param*> params_;
  comm::Group dp_;
  GradBufferOptions options_;
  at::Tensor flat_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;   // by parameter
  std::vector<int64_t> uses_left_;  // by parameter, in this step
  bool armed_ = false;
};

}  // namespace metroplex::optim

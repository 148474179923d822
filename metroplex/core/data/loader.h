// Dataset, sampler and prefetch: returns this rank's microbatches in order while threads read ahead.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/sample.h"
#include "data/sampler.h"

namespace metroplex::data {

class Loader {
 public:
  // Sets `options.total_samples` from the dataset. Up to `prefetch` microbatches are read ahead, each by one of
  // `threads` threads. 0: the caller's thread reads on demand.
  Loader(std::shared_ptr<const Dataset> dataset, SamplerOptions options, int prefetch = 2, int threads = 1);
  ~Loader();  // stops the threads, even while they read ahead
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Returns the next microbatch (micro_batch_size samples), or false at the end of the data. Rethrows the exception
  // of a reading thread at the microbatch where it occurred.
  bool next(std::vector<Sample>& microbatch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace metroplex::data

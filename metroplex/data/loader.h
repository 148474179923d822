// Dataset + sampler + prefetch: returns this rank's micro-batches in order while threads read ahead.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/sample.h"
#include "data/sampler.h"

namespace metroplex::data {

class Loader {
 public:
  // `options.total_samples` is taken from the dataset. Up to `prefetch` micro-batches are read ahead, each by one of
  // `threads` threads; 0: they are read in the caller's thread, on demand.
  Loader(std::shared_ptr<const Dataset> dataset, SamplerOptions options, int prefetch = 2, int threads = 1);
  ~Loader();  // stops the threads, even while they read ahead
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next micro-batch (micro_batch_size samples). False at the end of the data. An exception of a reading thread
  // is thrown here, at the micro-batch where it happened.
  bool next(std::vector<Sample>& microbatch);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace metroplex::data

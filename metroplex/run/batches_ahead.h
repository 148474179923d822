// Prefetches the microbatches of the next step after the current step is enqueued and before its outcome is read.
// While the GPU computes, the host reads, stacks and pins samples and enqueues their copies.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "nn/microbatch.h"
#include "run/run_data.h"

namespace metroplex::run {

class BatchesAhead {
 public:
  using Fetch = std::function<std::vector<nn::Microbatch>(const RunData::Wanted&)>;
  explicit BatchesAhead(Fetch fetch) : fetch_(std::move(fetch)) {}

  // take() rethrows an exception from this fetch, after the current step has been reported.
  void begin(const RunData::Wanted& wanted) {
    wanted_ = wanted;
    try {
      batches_ = fetch_(wanted);
    } catch (...) { failure_ = std::current_exception(); }
  }
  // Returns the prefetched microbatches, which must match `wanted`. Without a prefetch, fetches them now.
  std::vector<nn::Microbatch> take(const RunData::Wanted& wanted) {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    if (!wanted_) return fetch_(wanted);
    MPX_ASSERT(*wanted_ == wanted, "the prefetched batch is for iteration ", wanted_->iteration,
               ", not for iteration ", wanted.iteration);
    wanted_.reset();
    return std::exchange(batches_, {});
  }

 private:
  Fetch fetch_;
  std::optional<RunData::Wanted> wanted_;
  std::vector<nn::Microbatch> batches_;
  std::exception_ptr failure_;
};

}  // namespace metroplex::run

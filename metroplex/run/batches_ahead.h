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

class BatchPrefetcher {
 public:
  using Fetch = std::function<std::vector<nn::Microbatch>(const RunData::BatchRequest&)>;
  explicit BatchPrefetcher(Fetch fetch) : fetch_(std::move(fetch)) {}

  // take() rethrows an exception from this fetch, after the current step has been reported.
  void begin(const RunData::BatchRequest& request) {
    request_ = request;
    try {
      batches_ = fetch_(request);
    } catch (...) { failure_ = std::current_exception(); }
  }
  // Returns the prefetched microbatches, which must match `request`. Without a prefetch, fetches them now.
  std::vector<nn::Microbatch> take(const RunData::BatchRequest& request) {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    if (!request_) return fetch_(request);
    MPX_ASSERT(*request_ == request, "the prefetched batch is for iteration ", request_->iteration,
               ", not for iteration ", request.iteration);
    request_.reset();
    return std::exchange(batches_, {});
  }

 private:
  Fetch fetch_;
  std::optional<RunData::BatchRequest> request_;
  std::vector<nn::Microbatch> batches_;
  std::exception_ptr failure_;
};

}  // namespace metroplex::run

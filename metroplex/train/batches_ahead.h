// The microbatches of the next step, fetched between the enqueuing of a step and the reading of its outcome: a GPU
// computes while the host reads samples, stacks and pins them and enqueues their copies behind the step.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "nn/microbatch.h"
#include "train/run_data.h"

namespace metroplex::train {

class BatchesAhead {
 public:
  using Fetch = std::function<std::vector<nn::Microbatch>(const RunData::Wanted&)>;
  explicit BatchesAhead(Fetch fetch) : fetch_(std::move(fetch)) {}

  // What is thrown meanwhile is thrown by take(): the step under way has an outcome to be told first.
  void begin(const RunData::Wanted& wanted) {
    wanted_ = wanted;
    try {
      batches_ = fetch_(wanted);
    } catch (...) { failure_ = std::current_exception(); }
  }
  // Those that have been fetched, which must be the ones wanted, or fetches them now.
  std::vector<nn::Microbatch> take(const RunData::Wanted& wanted) {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    if (!wanted_) return fetch_(wanted);
    MPX_ASSERT(*wanted_ == wanted, "the batch that was fetched ahead is that of iteration ", wanted_->iteration,
               ", not of ", wanted.iteration);
    wanted_.reset();
    return std::exchange(batches_, {});
  }

 private:
  Fetch fetch_;
  std::optional<RunData::Wanted> wanted_;
  std::vector<nn::Microbatch> batches_;
  std::exception_ptr failure_;
};

}  // namespace metroplex::train

#include "data/loader.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"

namespace metroplex::data {

struct Loader::State {
  struct Read {
    std::vector<Sample> samples;
    std::exception_ptr failure;
    bool end = false;
  };

  State(std::shared_ptr<const Dataset> source, const SamplerOptions& options, size_t ahead)
      : dataset(std::move(source)), sampler(options), most(ahead) {}

  // Fills `read.samples`, using the memory of the samples already there.
  void read_one(Read& read) {
    try {
      std::vector<int64_t> indices;
      read.end = !sampler.next(indices);
      read.samples.resize(indices.size());
      for (size_t i = 0; i < indices.size(); ++i) dataset->get(indices[i], read.samples[i]);
    } catch (...) { read.failure = std::current_exception(); }
  }

  void run() {
    for (;;) {
      Read read;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stop || ready.size() < most; });
        if (stop) return;
        read.samples = std::move(spare);
        spare.clear();
      }
      read_one(read);
      const bool last = read.end || read.failure;
      {
        const std::lock_guard lock(mutex);
        ready.push_back(std::move(read));
      }
      changed.notify_all();
      if (last) return;
    }
  }

  std::shared_ptr<const Dataset> dataset;
  Sampler sampler;
  size_t most;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Read> ready;
  std::vector<Sample> spare;  // a used micro-batch, for its memory
  bool stop = false;
  std::thread thread;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, SamplerOptions options, int prefetch) {
  MPX_ASSERT(dataset != nullptr && prefetch >= 0, "prefetch ", prefetch);
  options.total_samples = dataset->size();
  state_ = std::make_unique<State>(std::move(dataset), options, static_cast<size_t>(prefetch));
  if (prefetch > 0) state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Loader::~Loader() {
  if (!state_->thread.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

bool Loader::next(std::vector<Sample>& microbatch) {
  State& state = *state_;
  if (!state.thread.joinable()) {
    State::Read read;
    read.samples = std::move(microbatch);
    state.read_one(read);
    microbatch = std::move(read.samples);
    if (read.failure) std::rethrow_exception(read.failure);
    return !read.end;
  }
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&] { return !state.ready.empty(); });
  State::Read& front = state.ready.front();
  if (front.failure) std::rethrow_exception(front.failure);  // stays at the front: asking again gives the same answer
  if (front.end) {
    microbatch.clear();
    return false;
  }
  state.spare = std::move(microbatch);
  microbatch = std::move(front.samples);
  state.ready.pop_front();
  lock.unlock();
  state.changed.notify_all();
  return true;
}

}  // namespace metroplex::data

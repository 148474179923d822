#include "data/loader.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/error.h"

namespace metroplex::data {

struct Loader::State {
  struct Read {
    std::vector<Sample> samples;
    std::exception_ptr failure;
    bool end = false, done = false;
  };

  State(std::shared_ptr<const Dataset> source, const SamplerOptions& options, size_t ahead)
      : dataset(std::move(source)), sampler(options), most(ahead) {}

  // Selects the next samples and advances the sampler by one microbatch. Not thread-safe.
  void choose(Read& read, std::vector<int64_t>& indices) {
    try {
      indices.clear();
      read.end = !sampler.next(indices);
    } catch (...) { read.failure = std::current_exception(); }
  }

  void fill(Read& read, const std::vector<int64_t>& indices) {
    try {
      read.samples.resize(indices.size());
      for (size_t i = 0; i < indices.size(); ++i) dataset->get(indices[i], read.samples[i]);
    } catch (...) { read.failure = std::current_exception(); }
  }

  // Body of a reading thread. Threads reserve microbatches in order and fill them concurrently.
  void run() {
    std::vector<int64_t> indices;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stop || ended || ready.size() < most; });
      if (stop || ended) return;
      ready.push_back(std::make_unique<Read>());
      Read& read = *ready.back();
      if (!spare.empty()) {
        read.samples = std::move(spare.back());
        spare.pop_back();
      }
      choose(read, indices);
      ended = read.end || read.failure;
      if (!ended) {
        lock.unlock();
        fill(read, indices);
        lock.lock();
      }
      read.done = true;
      changed.notify_all();
    }
  }

  std::shared_ptr<const Dataset> dataset;
  Sampler sampler;
  size_t most;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::unique_ptr<Read>> ready;  // in order; the first ones are done or being filled
  std::vector<std::vector<Sample>> spare;   // consumed microbatches, kept for their memory
  bool stop = false, ended = false;         // ended: the sampler is exhausted
  std::vector<std::thread> threads;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, SamplerOptions options, int prefetch, int threads) {
  MPX_ASSERT(dataset != nullptr && prefetch >= 0 && threads >= 1, "prefetch ", prefetch, " by ", threads);
  options.total_samples = dataset->size();
  state_ = std::make_unique<State>(std::move(dataset), options, static_cast<size_t>(prefetch));
  try {
    for (int i = 0; prefetch > 0 && i < threads; ++i)
      state_->threads.emplace_back([state = state_.get()] { state->run(); });
  } catch (const std::system_error&) {}  // the started threads read all data; if there are none, next() reads
}

Loader::~Loader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

bool Loader::next(std::vector<Sample>& microbatch) {
  State& state = *state_;
  if (state.threads.empty()) {
    State::Read read;
    std::vector<int64_t> indices;
    read.samples = std::move(microbatch);
    state.choose(read, indices);
    if (!read.failure) state.fill(read, indices);
    microbatch = std::move(read.samples);
    if (read.failure) std::rethrow_exception(read.failure);
    return !read.end;
  }
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&] { return !state.ready.empty() && state.ready.front()->done; });
  State::Read& front = *state.ready.front();
  if (front.failure)
    std::rethrow_exception(front.failure);  // kept at the front: a repeated call fails in the same way
  if (front.end) {
    microbatch.clear();
    return false;
  }
  state.spare.push_back(std::move(microbatch));
  microbatch = std::move(front.samples);
  state.ready.pop_front();
  lock.unlock();
  state.changed.notify_all();
  return true;
}

}  // namespace metroplex::data

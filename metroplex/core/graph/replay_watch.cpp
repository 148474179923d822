#include "graph/replay_watch.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/error.h"

namespace metroplex::graph {

ReplayWatch::ReplayWatch(Options options) : options_(std::move(options)), thread_([this] { watch(); }) {}

ReplayWatch::~ReplayWatch() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  closed_.notify_all();
  thread_.join();
}

void ReplayWatch::begin_capture() {
  capturing_ = true;
  started_.clear();
  write_next();
}

void ReplayWatch::write_next() {
  int64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = static_cast<int64_t>(awaited_.size());
    awaited_.emplace_back();
  }
  options_.write(number);
}

void ReplayWatch::add(std::function<bool()> ended) {
  const std::lock_guard lock(mutex_);
  replays_.push_back({std::move(ended), step_});
}

void ReplayWatch::joins(const std::string& group, const std::string& /*purpose*/, const std::vector<int>& ranks) {
  std::string list;
  for (const int rank : ranks) list += base::concat(list.empty() ? "" : ", ", rank);
  ranks_[group] = list;
}

void ReplayWatch::name_awaited(const device::Operation& wait) {
  std::deque<Started>& started = started_[wait.group];
  const auto call =
      std::find_if(started.begin(), started.end(), [&](const Started& one) { return one.work == wait.work; });
  const std::string name = call == started.end() ? "a call" : call->name;
  if (call != started.end()) started.erase(call);
  const std::lock_guard lock(mutex_);
  awaited_.back() = base::concat(name, " of group ", wait.group, " (ranks ", ranks_[wait.group], ")");
}

void ReplayWatch::run(device::Operation operation) {
  const bool waits = operation.name == "wait";
  if (capturing_ && waits) name_awaited(operation);
  if (capturing_ && !waits) started_[operation.group].push_back({operation.work, operation.name});
  operation.run();
  if (capturing_ && waits) write_next();
}

// Returns whether a replay has ended.
bool ReplayWatch::drop_ended() {
  const size_t before = replays_.size();
  try {
    while (!replays_.empty() && replays_.front().ended()) replays_.pop_front();
  } catch (const std::exception&) { replays_.clear(); }  // the rank's thread receives the same CUDA error
  return replays_.size() != before;
}

std::exception_ptr ReplayWatch::make_failure(int64_t number) const {
  const std::string& awaited = awaited_.at(static_cast<size_t>(number));
  const std::string what = awaited.empty() ? "work after the last collective" : awaited;
  return std::make_exception_ptr(base::Error(
      "comm", base::concat("captured step of ", replays_.front().step, ": ", what, " did not complete within ",
                           options_.timeout.count() / 1000.0, " s (run.distributed_timeout_minutes)")));
}

void ReplayWatch::watch() {
  using Clock = std::chrono::steady_clock;
  options_.begin_thread();
  const std::chrono::milliseconds pause = std::min(options_.timeout / 10, std::chrono::milliseconds(200));
  int64_t last = -1;
  auto since = Clock::now();
  std::unique_lock lock(mutex_);
  while (!closed_.wait_for(lock, pause, [this] { return closing_; })) {
    const int64_t number = options_.read();
    const bool progressed = drop_ended() || number != last || replays_.empty();
    last = number;
    if (progressed) since = Clock::now();
    if (Clock::now() - since < options_.timeout) continue;
    const std::exception_ptr failure = make_failure(number);
    lock.unlock();
    return options_.end_run(failure);
  }
}

std::unique_ptr<ReplayWatch> make_replay_watch(at::Device gpu, std::chrono::milliseconds timeout,
                                               std::function<void(const std::exception_ptr& failure)> end_run) {
  const at::TensorOptions int64 = at::TensorOptions().dtype(at::kLong);
  const at::Tensor progress = at::zeros({1}, int64.pinned_memory(true));
  const at::Tensor on_gpu =
      at::for_blob(progress.data_ptr(), progress.sizes()).options(int64.device(gpu)).target_device(gpu).make_tensor();
  ReplayWatch::Options options;
  options.timeout = timeout;
  options.write = [on_gpu](int64_t number) { on_gpu.fill_(number); };
  options.read = [progress] { return std::atomic_ref(*progress.mutable_data_ptr<int64_t>()).load(); };
  // Events are freed on the thread. CUDA creates a context on the thread's current device then.
  options.begin_thread = [gpu] { c10::impl::VirtualGuardImpl(gpu.type()).setDevice(gpu); };
  options.end_run = std::move(end_run);
  return std::make_unique<ReplayWatch>(std::move(options));
}

}  // namespace metroplex::graph

// Ends a run whose replay makes no progress within a time limit. CUDA reports nothing about a replay that waits for
// another rank, and c10d's watchdog omits captured collectives. A capture therefore contains, after each wait for a
// collective, a write of a number to host memory. A thread polls this number and the end of each replay.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/launch_point.h"

namespace metroplex::graph {

// As the Recorder of a rank's groups it receives their calls. All members are called on the rank's thread.
class ReplayWatch final : public device::Recorder {
 public:
  struct Options {
    std::chrono::milliseconds timeout{};  // of one collective, or of a replay after its last one
    // Enqueues a write of `number` on the current stream. `read` returns the latest number, on any thread.
    std::function<void(int64_t number)> write;
    std::function<int64_t()> read;
    std::function<void()> begin_thread = [] {};  // called first on the thread of this object
    // Receives base::Error("comm", ...) at most once, on the thread of this object.
    std::function<void(const std::exception_ptr& failure)> end_run;
  };
  explicit ReplayWatch(Options options);
  ~ReplayWatch() override;
  ReplayWatch(const ReplayWatch&) = delete;
  ReplayWatch& operator=(const ReplayWatch&) = delete;

  void begin_capture();
  void end_capture() noexcept { capturing_ = false; }
  // Names the following replays in errors, for example "iteration 12".
  void set_step(std::string step) { step_ = std::move(step); }
  // Adds a launched replay. `ended` is called on the thread of this object.
  void add(std::function<bool()> ended);

  void run(device::Operation operation) override;
  void joins(const std::string& group, const std::string& purpose, const std::vector<int>& ranks) override;

 private:
  struct Replay {
    std::function<bool()> ended;
    std::string step;
  };
  void write_next();
  void name_awaited(const device::Operation& wait);
  void watch();
  bool drop_ended();
  std::exception_ptr make_failure(int64_t number) const;

  const Options options_;
  bool capturing_ = false;
  std::string step_;
  std::map<std::string, std::string> ranks_;  // global, by group: "0, 1"
  struct Started {
    const void* work;  // device::Operation::work
    std::string name;
  };
  std::map<std::string, std::deque<Started>> started_;  // calls of this capture before their wait, by group

  std::mutex mutex_;  // of the members below
  std::condition_variable closed_;
  bool closing_ = false;
  std::deque<Replay> replays_;        // in launch order
  std::vector<std::string> awaited_;  // by number: the collective that is waited for after its write; "": none
  std::thread thread_;
};

// Creates a watch whose captures write to pinned host memory, which is read without a CUDA call.
std::unique_ptr<ReplayWatch> make_replay_watch(at::Device gpu, std::chrono::milliseconds timeout,
                                               std::function<void(const std::exception_ptr& failure)> end_run);

}  // namespace metroplex::graph

// Reports libtorch's operators of the calling thread with their times, through libtorch's RecordFunction.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace metroplex::run {

class LibrarySpans {
 public:
  using Clock = std::chrono::steady_clock;
  using Observer = std::function<void(const char* name, Clock::time_point start, Clock::time_point end)>;

  // Until destruction, `observer` receives each operator after it has run, including those that the autograd engine
  // runs for this thread. Operators that another operator calls are not reported. The destructor must run in the same
  // thread.
  explicit LibrarySpans(Observer observer);
  ~LibrarySpans();
  LibrarySpans(const LibrarySpans&) = delete;
  LibrarySpans& operator=(const LibrarySpans&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace metroplex::run

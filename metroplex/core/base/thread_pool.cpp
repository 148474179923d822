#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/out_of_memory.h"

namespace metroplex::base {

void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& work) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  int64_t failed_at = count;
  std::exception_ptr failure;
  const auto run = [&] {
    for (int64_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed_at) {
          failed_at = i;
          failure = std::current_exception();
        }
      }
    }
  };
  std::vector<std::thread> helpers;
  try {
    for (int64_t t = 1; t < std::min<int64_t>(threads, count); ++t) helpers.emplace_back(run);
  } catch (const std::system_error&) {}  // the started threads do all of the work
  run();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

void run_together(int count, const std::function<void(int)>& work) {
  std::promise<bool> gate;
  const std::shared_future<bool> begins = gate.get_future().share();
  std::vector<std::thread> threads;
  std::string problem;
  try {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&work, begins, i] {
        if (begins.get()) work(i);
      });
    }
  } catch (const std::exception& error) { problem = error.what(); }  // thread limit, or no memory for the stack
  gate.set_value(problem.empty());
  for (std::thread& thread : threads) thread.join();
  MPX_CHECK(problem.empty(), "memory", "only ", threads.size(), " of ", count, " threads can be started (", problem,
            "): ", kNoMoreThreads, "; use fewer ranks");
}

}  // namespace metroplex::base

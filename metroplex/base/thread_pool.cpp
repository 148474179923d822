#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

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
  for (int64_t t = 1; t < std::min<int64_t>(threads, count); ++t) helpers.emplace_back(run);
  run();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace metroplex::base

// Parallel loops on host threads.
#pragma once

#include <cstdint>
#include <functional>

namespace metroplex::base {

// Calls work(i) for i in [0, count) on up to `threads` threads, including the caller's. Returns when all are done;
// then rethrows the exception of the lowest failing i. If not all threads can be started, the started ones do all
// of the work.
void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& work);

// Calls work(i) for i in [0, count), each on its own thread, for work whose threads wait for each other. `work`
// must not throw. Throws base::Error("memory") without calling work if not all threads can be started.
void run_together(int count, const std::function<void(int)>& work);

}  // namespace metroplex::base

// Runs independent pieces of host work on a few threads and hands back the first exception.
#pragma once

#include <cstdint>
#include <functional>

namespace metroplex::base {

// Calls work(i) for i in [0, count) on up to `threads` threads (at least one: the caller's own).
// Returns when all are done; rethrows the exception of the lowest failing i after the others have finished.
void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& work);

}  // namespace metroplex::base

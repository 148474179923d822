// Pieces of host work on threads.
#pragma once

#include <cstdint>
#include <functional>

namespace metroplex::base {

// Calls work(i) for i in [0, count) on up to `threads` threads (at least one: the caller's own).
// Returns when all are done; rethrows the exception of the lowest failing i after the others have finished. Where the
// system gives fewer threads, those do all of it.
void parallel_for(int64_t count, int threads, const std::function<void(int64_t)>& work);

// Calls work(i), which does not throw, for i in [0, count) on a thread each, for work that waits for the others'.
// Where not all of them can be started, none calls it: base::Error("memory").
void run_together(int count, const std::function<void(int)>& work);

}  // namespace metroplex::base

#include "graph/host_pool.h"

#include <ATen/core/CachingHostAllocator.h>

#include <exception>

namespace metroplex::graph {
namespace {

c10::MempoolId_t host_id(CudaGraphCalls::Pool pool) { return {pool.first, pool.second}; }

template <class Step>
bool done(const Step& step) noexcept {
  try {
    step();
    return true;
  } catch (const std::exception&) { return false; }
}

}  // namespace

// The allocator has no call that only takes a reference. begin takes one, and end does not drop it.
void hold_host_pool(at::HostAllocator& host, CudaGraphCalls::Pool pool) {
  host.begin_allocate_to_pool(host_id(pool), [](c10::Stream) { return false; });
  host.end_allocate_to_pool(host_id(pool));
}

void drop_host_pool(at::HostAllocator& host, CudaGraphCalls::Pool pool) noexcept {
  done([&] { host.release_pool(host_id(pool)); });
}

void leave_host_pool(at::HostAllocator& host, CudaGraphCalls::Pool pool, bool begun) noexcept {
  const bool was_recording = done([&] { host.end_allocate_to_pool(host_id(pool)); });
  if (begun || was_recording) drop_host_pool(host, pool);
}

}  // namespace metroplex::graph

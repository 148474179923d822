// The pinned-memory half of a graph's pool. libtorch 2.11 captures into a GPU pool and, under the same id, into a
// pool of pinned host memory; only the GPU pool can be held without a graph. A host pool whose last graph was reset
// rejects every later capture (CachingHostAllocator.h asserts use_count > 0). A capture that CUDA aborts leaves a
// filter that reads the destroyed graph. The functions take the allocator as an argument, so that they can be tested
// on any machine.
#pragma once

#include "graph/cuda_graph.h"

namespace at {
struct HostAllocator;
}

namespace metroplex::graph {

// Take and drop one reference to the pool, which is created on demand. Between the calls, graphs may be created and
// reset.
void hold_host_pool(at::HostAllocator& host, CudaGraphCalls::Pool pool);
void drop_host_pool(at::HostAllocator& host, CudaGraphCalls::Pool pool) noexcept;

// Releases the resources of CUDAGraph::capture_begin after a capture that did not end. `begun`: whether capture_begin
// returned; if it threw, the allocator may or may not have been changed.
void leave_host_pool(at::HostAllocator& host, CudaGraphCalls::Pool pool, bool begun) noexcept;

}  // namespace metroplex::graph

// The pinned half of a graph's pool. libtorch 2.11 captures into a pool of the GPU and, under the same id, into one
// of pinned host memory, and of the two only the first can be held without a graph. A host pool whose last graph was
// reset refuses every later capture (CachingHostAllocator.h asserts use_count > 0), and a capture that CUDA gives up
// leaves a filter behind that reads the dead graph. The functions take the allocator, so that they run on any
// machine.
#pragma once

#include "cuda/graph/cuda_graph.h"

namespace at {
struct HostAllocator;
}

namespace metroplex::cuda {

// One reference to the pool, which is made if it is not there, and its end. Between them graphs may come and go.
void hold_host_pool(at::HostAllocator& host, CudaGraphCalls::Pool pool);
void drop_host_pool(at::HostAllocator& host, CudaGraphCalls::Pool pool) noexcept;

// After a capture that does not end: what CUDAGraph::capture_begin has taken is given back. `begun`: whether it has
// returned; where it has thrown, the allocator may or may not have got its part.
void leave_host_pool(at::HostAllocator& host, CudaGraphCalls::Pool pool, bool begun) noexcept;

}  // namespace metroplex::cuda

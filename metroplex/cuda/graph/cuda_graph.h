// GPU graphs: libtorch's CUDAGraph, captured on a side stream. The calls that this needs of CUDA are behind a small
// interface, so that the order of streams, events, pools and generators is tested on any machine.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/graph/graph.h"

namespace metroplex::cuda {

// For one thread and its current GPU. What CUDA refuses is an exception of libtorch's.
class CudaGraphCalls {
 public:
  // Of libtorch's allocator (MempoolId_t).
  struct Pool {
    uint64_t first = 0, second = 0;
    bool operator==(const Pool&) const = default;
  };

  class Graph {
   public:
    virtual ~Graph() = default;
    // Of the current stream, not the default one; what other threads do meanwhile does not disturb
    // (cudaStreamCaptureModeThreadLocal).
    virtual void begin_capture(Pool pool) = 0;
    virtual void end_capture() = 0;
    // After a capture that has begun, ended or failed: takes allocator and generators out of capture mode.
    virtual void discard_capture() noexcept = 0;
    virtual void instantiate() = 0;
    virtual int64_t nodes() = 0;
    virtual void launch() = 0;  // on the current stream
  };

  virtual ~CudaGraphCalls() = default;
  virtual std::unique_ptr<Graph> make_graph() = 0;

  virtual c10::Stream current_stream() = 0;
  virtual c10::Stream make_stream() = 0;  // not the default one
  virtual void set_current_stream(c10::Stream stream) = 0;
  // Makes `then` wait for the work that has been enqueued on `first`.
  virtual void chain(c10::Stream first, c10::Stream then) = 0;
  virtual void synchronize(c10::Stream stream) = 0;

  // Memory stays the pool's until drop_pool and the end of the graphs and tensors in it.
  virtual Pool make_pool() = 0;
  virtual void drop_pool(Pool pool) noexcept = 0;
  virtual GraphPool::Bytes pool_bytes(Pool pool) = 0;  // peak: 0, the allocator does not know
  virtual int64_t free_bytes() = 0;                    // of the GPU, whoever uses it
};

// Of the calling thread's GPU. Throws base::Error("cuda", ...) where there is none, or no CUDA in this build.
std::shared_ptr<CudaGraphCalls> make_cuda_graph_calls();

// GraphSize::bytes are the GPU memory that the instantiation took. A pool's peak counts what the capturing thread
// asked for, in the allocator's blocks.
std::unique_ptr<GraphDevice> make_cuda_graph_device(std::shared_ptr<CudaGraphCalls> calls = make_cuda_graph_calls());

}  // namespace metroplex::cuda

// GPU graphs: libtorch's CUDAGraph, captured on a side stream. A small interface contains the required CUDA calls,
// so that the order of streams, events, pools and generators can be tested on any machine.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "graph/graph.h"

namespace metroplex::graph {

// For one thread and its current GPU. CUDA errors are thrown as libtorch exceptions.
class CudaGraphCalls {
 public:
  // An id of libtorch's allocator (MempoolId_t).
  struct Pool {
    uint64_t first = 0, second = 0;
    bool operator==(const Pool&) const = default;
  };

  class Graph {
   public:
    virtual ~Graph() = default;
    // Captures the current stream, which must not be the default one. Other threads may use CUDA during the capture
    // (cudaStreamCaptureModeThreadLocal).
    virtual void begin_capture(Pool pool) = 0;
    virtual void end_capture() = 0;
    // Takes allocator and generators out of capture mode. Call after a capture has started, ended or failed.
    virtual void discard_capture() noexcept = 0;
    virtual void instantiate() = 0;
    virtual int64_t nodes() = 0;
    virtual void launch() = 0;  // on the current stream
  };

  virtual ~CudaGraphCalls() = default;
  virtual std::unique_ptr<Graph> make_graph() = 0;

  virtual c10::Stream current_stream() = 0;
  virtual c10::Stream make_stream() = 0;  // a stream other than the default one
  virtual void set_current_stream(c10::Stream stream) = 0;
  // Makes `then` wait for the work enqueued on `first`.
  virtual void chain(c10::Stream first, c10::Stream then) = 0;
  virtual void synchronize(c10::Stream stream) = 0;
  // Returns a function that reports, on any thread, whether the work enqueued so far on the current stream has ended.
  virtual std::function<bool()> record_end() = 0;

  // The pool keeps its memory until drop_pool is called and its graphs and tensors are destroyed.
  virtual Pool make_pool() = 0;
  virtual void drop_pool(Pool pool) noexcept = 0;
  virtual GraphPool::Bytes pool_bytes(Pool pool) = 0;  // peak is 0: the allocator does not report it
  virtual int64_t free_bytes() = 0;                    // free memory of the GPU, over all processes
};

// For the calling thread's GPU. Throws base::Error("cuda", ...) without a GPU or without CUDA in this build.
std::shared_ptr<CudaGraphCalls> make_cuda_graph_calls();

// GraphSize::bytes is the GPU memory that the instantiation takes. A pool's peak counts the capturing thread's
// allocations, in the allocator's blocks. `watch` may be null; it must outlive the device and its graphs.
std::unique_ptr<GraphDevice> make_cuda_graph_device(std::shared_ptr<CudaGraphCalls> calls = make_cuda_graph_calls(),
                                                    ReplayWatch* watch = nullptr);

}  // namespace metroplex::graph

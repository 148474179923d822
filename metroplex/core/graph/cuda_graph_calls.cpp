#include "graph/cuda_graph.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "base/error.h"
#include "device/device.h"
#include "graph/host_pool.h"

namespace metroplex::graph {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

c10::MempoolId_t to_mempool_id(CudaGraphCalls::Pool pool) { return {pool.first, pool.second}; }
at::HostAllocator& pinned() { return *at::getHostAllocator(at::kCUDA); }

// Calls each step, even if another one throws.
template <class... Steps>
void try_each(const Steps&... steps) noexcept {
  const auto attempt = [](const auto& step) {
    try {
      step();
    } catch (const std::exception&) {}  // the caller reports the error that led here
  };
  (attempt(steps), ...);
}

// If CUDA aborts a capture, libtorch's capture_end leaves allocators and generators in capture mode; discard() resets
// them.
class Captured final : public at::cuda::CUDAGraph {
 public:
  Captured() : CUDAGraph(/*keep_graph=*/true) {}

  void begin(c10::MempoolId_t pool) {
    begun_ = false;
    capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    begun_ = true;
  }

  void discard() noexcept {
    bool ended = capture_ended_;
    if (!ended) {
      try_each([&] {
        capture_end();
        ended = true;
      });
    }
    if (!ended) leave_capture();
    try_each([&] { reset(); });
  }

 private:
  void leave_capture() noexcept {
    for (auto& [state, increment] : captured_generator_states_) {
      state->capturing_ = false;
      increment = 0;
    }
    // capture_begin referenced each pool once and redirected its stream's allocations, first to the GPU pool.
    try_each([&] { allocator::endAllocateToPool(capture_dev_, mempool_id_); },
             [&] { allocator::releasePool(capture_dev_, mempool_id_); });
    leave_host_pool(pinned(), {mempool_id_.first, mempool_id_.second}, begun_);
  }

  bool begun_ = false;
};

class GraphOfGpu final : public CudaGraphCalls::Graph {
 public:
  void begin_capture(CudaGraphCalls::Pool pool) override { graph_.begin(to_mempool_id(pool)); }
  void end_capture() override { graph_.capture_end(); }
  void discard_capture() noexcept override { graph_.discard(); }
  void instantiate() override { graph_.instantiate(); }
  int64_t nodes() override {
    size_t nodes = 0;
    C10_CUDA_CHECK(cudaGraphGetNodes(graph_.raw_cuda_graph(), nullptr, &nodes));
    return static_cast<int64_t>(nodes);
  }
  void launch() override { graph_.replay(); }

 private:
  Captured graph_;
};

class CallsOfGpu final : public CudaGraphCalls {
 public:
  CallsOfGpu() : device_(c10::cuda::current_device()) {}

  std::unique_ptr<Graph> make_graph() override { return std::make_unique<GraphOfGpu>(); }

  c10::Stream current_stream() override { return c10::cuda::getCurrentCUDAStream(device_).unwrap(); }
  c10::Stream make_stream() override {
    return c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_).unwrap();
  }
  void set_current_stream(c10::Stream stream) override {
    c10::cuda::setCurrentCUDAStream(c10::cuda::CUDAStream(stream));
  }
  void chain(c10::Stream first, c10::Stream then) override {
    c10::Event event(at::kCUDA);
    event.record(first);
    event.block(then);
  }
  void synchronize(c10::Stream stream) override { stream.synchronize(); }
  std::function<bool()> record_end() override {
    const auto event = std::make_shared<c10::Event>(at::kCUDA);
    event->record(current_stream());
    return [event] { return event->query(); };
  }

  Pool make_pool() override {
    at::globalContext().lazyInitDevice(at::kCUDA);  // the allocator has no devices before the first tensor
    const c10::MempoolId_t id = at::cuda::graph_pool_handle();
    allocator::createOrIncrefPool(device_, id);
    hold_host_pool(pinned(), {id.first, id.second});
    return {id.first, id.second};
  }
  void drop_pool(Pool pool) noexcept override {
    try_each([&] { allocator::releasePool(device_, to_mempool_id(pool)); });
    drop_host_pool(pinned(), pool);
  }
  GraphPool::Bytes pool_bytes(Pool pool) override {
    GraphPool::Bytes bytes;
    for (const auto& segment : allocator::snapshot(to_mempool_id(pool), /*include_traces=*/false).segments) {
      if (segment.owner_private_pool_id != to_mempool_id(pool)) continue;
      bytes.reserved += static_cast<int64_t>(segment.total_size);
      for (const auto& block : segment.blocks) {
        if (block.allocated) bytes.live += static_cast<int64_t>(block.requested_size);
      }
    }
    return bytes;
  }
  int64_t free_bytes() override {
    size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free);
  }

 private:
  const c10::DeviceIndex device_;
};

}  // namespace

std::shared_ptr<CudaGraphCalls> make_cuda_graph_calls() {
  MPX_CHECK(device::device_count() > 0, "cuda", "no GPU was found; run on a machine with one, or without CUDA");
  return std::make_shared<CallsOfGpu>();
}

}  // namespace metroplex::graph

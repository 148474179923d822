// libtorch's pinned-memory allocator under the calls of its CUDAGraph, on the CPU: its own template over plain
// memory. The test also asserts libtorch's own failures, so that a version without these bugs is noticed.
#include "graph/host_pool.h"

#include <ATen/core/CachingHostAllocator.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace metroplex::graph::host_pool_test {
namespace {

using Pool = CudaGraphCalls::Pool;
struct NoEvent {};

// One stream, possibly capturing.
struct PlainMemory : at::CachingHostAllocatorImpl<c10::Stream, NoEvent> {
  bool capturing = false;
  int blocks = 0;

  void allocate_host_memory(size_t size, void** ptr) override {
    *ptr = std::malloc(size);
    ++blocks;
  }
  void free_block(at::HostBlock<c10::Stream>* block) override {
    std::free(block->ptr_);
    --blocks;
  }
  c10::Stream get_current_stream() const override {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, 0), /*id=*/7);
  }
  bool stream_is_capturing(c10::Stream) const override { return capturing; }
  bool query_event(NoEvent&) override { return true; }
};

void no_deleter(void*) {}
using Allocator = at::CachingHostAllocatorInterface<PlainMemory, no_deleter>;

struct HostPool : testing::Test {
  Allocator host;
  PlainMemory& memory = *host.impl_;
  const Pool pool{0, 5};
  const c10::MempoolId_t id{0, 5};
  int asked = 0;  // filter calls by graphs

  // The calls of CUDAGraph.
  void capture_begin() {
    host.begin_allocate_to_pool(id, [this](c10::Stream) {
      ++asked;
      return memory.capturing;
    });
    memory.capturing = true;
  }
  void capture_end() {
    memory.capturing = false;
    host.end_allocate_to_pool(id);
  }
  void cuda_gives_up() { memory.capturing = false; }
  void reset() { host.release_pool(id); }

  void capture_a_pinned_tensor() {
    capture_begin();
    memory.free(memory.allocate(100).second);
    capture_end();
  }
};

TEST_F(HostPool, IsCapturedIntoAgainBehindItsOnlyGraph) {
  hold_host_pool(host, pool);
  for (int i = 0; i < 3; ++i) {
    capture_a_pinned_tensor();
    EXPECT_EQ(memory.blocks, 1) << "the pool keeps its memory";
    reset();
  }
  capture_a_pinned_tensor();
  drop_host_pool(host, pool);
  host.empty_cache();
  EXPECT_EQ(memory.blocks, 1) << "a graph is left";
  reset();
  host.empty_cache();
  EXPECT_EQ(memory.blocks, 0) << "no owner holds it";
}

TEST_F(HostPool, IsCapturedIntoAgainBehindACaptureThatCudaGaveUp) {
  hold_host_pool(host, pool);
  for (int i = 0; i < 2; ++i) {
    capture_begin();
    cuda_gives_up();
    leave_host_pool(host, pool, /*begun=*/true);
  }
  asked = 0;
  memory.free(memory.allocate(100).second);
  EXPECT_EQ(asked, 0) << "the filter of a destroyed graph";
  capture_a_pinned_tensor();
  reset();
  drop_host_pool(host, pool);
  host.empty_cache();
  EXPECT_EQ(memory.blocks, 0);
}

// capture_begin threw before it reached pinned memory, after it, or when the allocator refused; or
// cudaStreamEndCapture failed after the allocators ended.
TEST_F(HostPool, LeavesNoReferenceAndTakesNoneThatAnotherHolds) {
  hold_host_pool(host, pool);
  leave_host_pool(host, pool, /*begun=*/false);
  capture_begin();
  leave_host_pool(host, pool, /*begun=*/false);
  capture_begin();
  capture_end();
  leave_host_pool(host, pool, /*begun=*/true);
  capture_a_pinned_tensor();
  reset();
  EXPECT_NO_THROW(capture_a_pinned_tensor()) << "the pool's own reference is there";
  reset();
  drop_host_pool(host, pool);
  host.empty_cache();
  EXPECT_EQ(memory.blocks, 0) << "nor is there one too many";
}

TEST_F(HostPool, OfLibtorchAloneRefusesTheSecondCapture) {
  capture_a_pinned_tensor();
  reset();
  EXPECT_ANY_THROW(capture_begin()) << "libtorch holds it by itself now: hold_host_pool can go";
}

TEST_F(HostPool, OfLibtorchAloneKeepsRecordingBehindACaptureThatCudaGaveUp) {
  capture_begin();
  cuda_gives_up();
  memory.free(memory.allocate(100).second);
  EXPECT_EQ(asked, 1) << "libtorch ends it by itself now: leave_host_pool can go";
  EXPECT_ANY_THROW(capture_begin());
}

}  // namespace
}  // namespace metroplex::graph::host_pool_test

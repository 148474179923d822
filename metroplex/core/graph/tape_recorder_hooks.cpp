#include "graph/tape_recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace metroplex::graph {
namespace {

// A dispatch key below autograd and above the kernels that no backend of libtorch's CPU wheel uses.
constexpr auto kKey = c10::DispatchKey::Fake;

struct ThreadHooks {
  LibraryCalls* calls = nullptr;
  std::shared_ptr<TapePool> pool;
};
thread_local ThreadHooks hooks;  // libtorch's callbacks identify only the thread

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (hooks.calls == nullptr) return run_below(op, keys, *stack);
  hooks.calls->call(op, keys, *stack);
}

// All pools with live memory. A free has only the address, so it must look up the pool.
class LivePools {
 public:
  void add(const std::shared_ptr<TapePool>& pool) {
    const std::unique_lock lock(mutex_);
    std::erase_if(pools_, [](const std::weak_ptr<TapePool>& known) { return known.expired(); });
    for (const auto& known : pools_) {
      if (known.lock() == pool) return;
    }
    pools_.push_back(pool);
  }
  std::shared_ptr<TapePool> of(const void* pointer) const {
    const std::shared_lock lock(mutex_);
    for (const auto& known : pools_) {
      if (auto pool = known.lock(); pool && pool->holds(pointer)) return pool;
    }
    return nullptr;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::vector<std::weak_ptr<TapePool>> pools_;
};

LivePools& live_pools() {
  static LivePools pools;
  return pools;
}

void report(const void* pointer, int64_t bytes, const GraphPool::Bytes& now) {
  c10::reportMemoryUsageToProfiler(const_cast<void*>(pointer), bytes, static_cast<size_t>(now.live),
                                   static_cast<size_t>(now.reserved), c10::kCPU);
}

// Uses libtorch's allocator except for threads with a pool.
class PoolAllocator final : public c10::Allocator {
 public:
  explicit PoolAllocator(c10::Allocator* otherwise) : otherwise_(otherwise) { outside = otherwise->raw_deleter(); }
  c10::DataPtr allocate(size_t bytes) override {
    if (!hooks.pool || bytes == 0) return otherwise_->allocate(bytes);
    void* pointer = hooks.pool->allocate(bytes);
    report(pointer, static_cast<int64_t>(bytes), hooks.pool->bytes());
    return {pointer, pointer, &give_back, c10::Device(c10::kCPU)};
  }
  // Frees memory of either allocator.
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void give_back(void* pointer) {
    if (pointer == nullptr) return;
    const std::shared_ptr<TapePool> pool = live_pools().of(pointer);
    if (!pool) return outside(pointer);
    const size_t bytes = pool->release(pointer);
    report(pointer, -static_cast<int64_t>(bytes), pool->bytes());
  }
  static inline c10::DeleterFnPtr outside = nullptr;

  c10::Allocator* otherwise_;
};

// Static initialization runs before any other thread starts: libtorch reads its allocator pointer without a lock.
PoolAllocator* const pool_allocator = [] {
  auto* made = new PoolAllocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(made, /*priority=*/1);
  return made;
}();

void check_allocator() {
  MPX_CHECK(c10::GetCPUAllocator() == pool_allocator, "cuda graph",
            "another allocator than the graphs' allocates the CPU tensors of this process, and memory that a capture "
            "frees would be lost; leave libtorch's allocator as it is, or set train.cuda_graph_impl: none");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

void run_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), &stack);
}

void unseen(const std::function<void()>& work) {
  const c10::impl::ExcludeDispatchKeyGuard not_seen(kKey);
  work();
}

struct TapeHooks::State {
  ThreadHooks outer;
  std::optional<c10::impl::IncludeDispatchKeyGuard> seen;
};

TapeHooks::TapeHooks(LibraryCalls* calls, std::shared_ptr<TapePool> pool) : state_(std::make_unique<State>()) {
  check_allocator();
  if (pool) live_pools().add(pool);
  state_->outer = std::exchange(hooks, {calls, std::move(pool)});
  if (calls != nullptr) state_->seen.emplace(kKey);
}

TapeHooks::~TapeHooks() { hooks = std::move(state_->outer); }

}  // namespace metroplex::graph

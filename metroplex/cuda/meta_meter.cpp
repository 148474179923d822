#include "cuda/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "base/error.h"

namespace metroplex::cuda {
namespace {

const c10::Device kMeta{c10::DeviceType::Meta};

// To whoever listens on this thread, as the allocators of real devices do.
void tell(int64_t bytes) {
  if (bytes != 0 && c10::memoryProfilingEnabled()) c10::reportMemoryUsageToProfiler(nullptr, bytes, 0, 0, kMeta);
}

// A block is its size: the context that c10 hands to the deleter, one more than the bytes because null has none.
void* block_of(size_t bytes) { return reinterpret_cast<void*>(bytes + 1); }
void tell_freed(void* block) { tell(1 - static_cast<int64_t>(reinterpret_cast<size_t>(block))); }

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    tell(static_cast<int64_t>(bytes));
    return {nullptr, block_of(bytes), &tell_freed, kMeta};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &tell_freed; }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/) const override {}
};

// Never destroyed: tensors may outlive whatever is static.
void install_meter() {
  static CountingAllocator* const ours = [] {
    auto* const allocator = new CountingAllocator;
    c10::SetAllocator(c10::DeviceType::Meta, allocator, /*priority=*/1);
    return allocator;
  }();
  MPX_ASSERT(c10::GetAllocator(c10::DeviceType::Meta) == ours,
             "another allocator of meta tensors has taken its place");
}

struct Reporter final : c10::MemoryReportingInfoBase {
  explicit Reporter(MetaMemory::Listener& to)
      : listener(to),
        outer(static_cast<c10::MemoryReportingInfoBase*>(
            c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE))) {}

  void reportMemoryUsage(void* pointer, int64_t bytes, size_t allocated, size_t reserved,
                         c10::Device device) override {
    if (device.is_meta()) bytes > 0 ? listener.allocated(bytes) : listener.freed(-bytes);
    if (outer != nullptr) outer->reportMemoryUsage(pointer, bytes, allocated, reserved, device);
  }
  bool memoryProfilingEnabled() const override { return true; }

  MetaMemory::Listener& listener;
  c10::MemoryReportingInfoBase* outer;
};

}  // namespace

struct MetaMemory::Guard {
  explicit Guard(Listener& listener)
      : guard(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Reporter>(listener)) {}
  c10::DebugInfoGuard guard;
};

MetaMemory::MetaMemory(Listener& listener) {
  install_meter();
  guard_ = std::make_unique<Guard>(listener);
}

MetaMemory::~MetaMemory() = default;

}  // namespace metroplex::cuda

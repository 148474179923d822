#include "device/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <mutex>
#include <unordered_map>

#include "base/error.h"

namespace metroplex::device {
namespace {

const c10::Device kMeta{c10::DeviceType::Meta};

// Reports to the listener of this thread, like the allocators of real devices.
void report(void* block, int64_t bytes) {
  if (bytes != 0 && c10::memoryProfilingEnabled()) c10::reportMemoryUsageToProfiler(block, bytes, 0, 0, kMeta);
}

// Sizes of allocated blocks. A block is a number, which c10 passes to the deleter as the context of the memory.
class Blocks {
 public:
  void* add(size_t bytes) {
    const std::lock_guard lock(mutex_);
    sizes_.emplace(++last_, bytes);
    return reinterpret_cast<void*>(last_);
  }
  size_t remove(void* block) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(reinterpret_cast<uintptr_t>(block));
    MPX_ASSERT(found != sizes_.end(), "meta memory is freed twice");
    const size_t bytes = found->second;
    sizes_.erase(found);
    return bytes;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<uintptr_t, size_t> sizes_;
  uintptr_t last_ = 0;
};

// Never destroyed: tensors may be freed after static objects are destroyed.
Blocks& blocks() {
  static auto* const all = new Blocks;
  return *all;
}

void free_block(void* block) { report(block, -static_cast<int64_t>(blocks().remove(block))); }

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const block = blocks().add(bytes);
    report(block, static_cast<int64_t>(bytes));
    return {nullptr, block, &free_block, kMeta};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/) const override {}
};

// Never destroyed: tensors may outlive static objects.
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
    if (device.is_meta()) bytes > 0 ? listener.allocated(bytes, pointer) : listener.freed(-bytes, pointer);
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

}  // namespace metroplex::device

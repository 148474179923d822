#include "device/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>

namespace metroplex::device {

// Atomic: an allocation inside a parallel loop may be reported from another thread of the pool.
struct MemoryMeter::Counter final : c10::MemoryReportingInfoBase {
  Counter(Of memory, c10::MemoryReportingInfoBase* outer) : memory(memory), outer(outer) {}

  void reportMemoryUsage(void* pointer, int64_t alloc_size, size_t total_allocated, size_t total_reserved,
                         c10::Device device) override {
    if (memory == Of::host ? device.is_cpu() : device.is_cuda()) add(alloc_size);
    if (outer != nullptr) outer->reportMemoryUsage(pointer, alloc_size, total_allocated, total_reserved, device);
  }
  bool memoryProfilingEnabled() const override { return true; }

  void add(int64_t size) {
    const int64_t now = bytes.fetch_add(size) + size;
    int64_t most = peak.load();
    while (now > most && !peak.compare_exchange_weak(most, now)) {}
  }

  const Of memory;
  c10::MemoryReportingInfoBase* outer;
  std::atomic<int64_t> bytes{0}, peak{0};
};

struct MemoryMeter::Guard {
  explicit Guard(std::shared_ptr<Counter> counter) : guard(c10::DebugInfoKind::PROFILER_STATE, std::move(counter)) {}
  c10::DebugInfoGuard guard;
};

MemoryMeter::MemoryMeter(Of memory)
    : counter_(
          std::make_shared<Counter>(memory, static_cast<c10::MemoryReportingInfoBase*>(
                                                c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE)))),
      guard_(std::make_unique<Guard>(counter_)) {}

MemoryMeter::~MemoryMeter() = default;

int64_t MemoryMeter::bytes() const { return counter_->bytes.load(); }
int64_t MemoryMeter::peak_bytes() const { return counter_->peak.load(); }
void MemoryMeter::reset_peak() { counter_->peak.store(counter_->bytes.load()); }

namespace {

struct NoMeter final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return false; }
};

}  // namespace

struct UnmeteredMemory::Guard {
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, std::make_shared<NoMeter>()};
};

UnmeteredMemory::UnmeteredMemory() : guard_(std::make_unique<Guard>()) {}
UnmeteredMemory::~UnmeteredMemory() = default;

}  // namespace metroplex::device

// Records the sizes that a thread allocates and frees, in order, on the CPU or on the meta device.
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/memory_meter.h"

namespace metroplex::test {

// Bytes; negative for a free. Scalars (8 bytes or less) are skipped because libtorch allocates some of them on the
// CPU in both cases.
using Allocations = std::vector<int64_t>;

// Misses allocations that a parallel loop makes on other threads; the compared work must run on one thread.
inline Allocations record_allocations(const std::function<void()>& work) {
  struct Host final : c10::MemoryReportingInfoBase {
    explicit Host(Allocations& to) : all(to) {}
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
      if (device.is_cpu() && std::abs(bytes) > 8) all.push_back(bytes);
    }
    bool memoryProfilingEnabled() const override { return true; }
    Allocations& all;
  };
  struct Meta final : device::MetaMemory::Listener {
    explicit Meta(Allocations& to) : all(to) {}
    void allocated(int64_t bytes, const void*) override {
      if (bytes > 8) all.push_back(bytes);
    }
    void freed(int64_t bytes, const void*) override {
      if (bytes > 8) all.push_back(-bytes);
    }
    Allocations& all;
  };
  Allocations all;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Host>(all));
    Meta meta(all);
    const device::MetaMemory listening(meta);
    work();
  }
  at::set_num_threads(threads);
  return all;
}

struct HeldMemory {
  int64_t peak = 0, kept = 0;
  bool operator==(const HeldMemory&) const = default;
};
inline HeldMemory held(const Allocations& all) {
  HeldMemory held;
  for (const int64_t bytes : all) {
    held.kept += bytes;
    held.peak = std::max(held.peak, held.kept);
  }
  return held;
}

inline void expect_same_allocations(const Allocations& got, const Allocations& wanted) {
  const size_t least = std::min(got.size(), wanted.size());
  const auto first = std::mismatch(got.begin(), got.begin() + static_cast<int64_t>(least), wanted.begin()).first;
  EXPECT_TRUE(got == wanted) << got.size() << " allocations for " << wanted.size() << ", which differ from number "
                             << first - got.begin() << " on";
}

}  // namespace metroplex::test

#include "device/device.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"

namespace metroplex::device {
namespace {

void need_gpu() {
  MPX_CHECK(device_count() > 0, "cuda", "no GPU was found; run on a machine with one, or without CUDA");
}

}  // namespace

int device_count() { return c10::cuda::device_count(); }

int compute_capability() {
  static const int of_first = [] {
    int major = 0, minor = 0;
    if (device_count() == 0 || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess)
      return 0;
    return 10 * major + minor;
  }();
  return of_first;
}

int64_t total_memory() {
  cudaDeviceProp properties{};
  if (device_count() == 0 || cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return 0;
  return static_cast<int64_t>(properties.totalGlobalMem);
}

CUstream_st* current_stream() {
  need_gpu();
  return c10::cuda::getCurrentCUDAStream().stream();
}

void set_device(int index) {
  need_gpu();
  MPX_CHECK(index < device_count(), "cuda", "there is no GPU ", index, ", but ", device_count(),
            "; start fewer ranks on this machine");
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
}

void synchronize() {
  need_gpu();
  c10::cuda::device_synchronize();
}

AllocatorPeak allocator_peak() {
  need_gpu();
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  const auto whole = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {stats.allocated_bytes[whole].peak, stats.reserved_bytes[whole].peak};
}

}  // namespace metroplex::device

// The memory in which cuBLAS adds up partial products. libtorch takes it from its allocator in the first product of a
// thread, which has a handle of its own, on a stream, and keeps it: one for each thread and stream.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace metroplex::cuda {

// Bytes of one, after libtorch 2.11's CublasHandlePool.cpp. `capability`: of the GPU, 90 for sm_90; 0: unknown, as if
// it took most. `setting`: of CUBLAS_WORKSPACE_CONFIG, pairs of ":KiB:number", which counts more than the GPU does.
int64_t cublas_workspace_bytes(int capability, const std::optional<std::string>& setting);

// The setting with which cuBLAS adds in the same order on every stream, where nothing else is set.
inline constexpr const char* kDeterministicCublas = ":4096:8";

}  // namespace metroplex::cuda

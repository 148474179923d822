// cuBLAS's workspace for partial products. libtorch allocates one per thread and stream, in the first product, and
// never frees it. Each thread has its own handle.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace metroplex::device {

// Size of one workspace in bytes, as in libtorch 2.11's CublasHandlePool.cpp. `capability`: of the GPU, 90 for sm_90;
// 0: unknown, returns the maximum. `setting`: value of CUBLAS_WORKSPACE_CONFIG, pairs of ":KiB:number"; it overrides
// the GPU's default.
int64_t cublas_workspace_bytes(int capability, const std::optional<std::string>& setting);

// The default setting of this program: cuBLAS then adds in the same order on every stream.
inline constexpr const char* kDeterministicCublas = ":4096:8";

}  // namespace metroplex::device

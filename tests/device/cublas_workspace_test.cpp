// Size of libtorch's cuBLAS workspace, by GPU and by environment setting.
#include "device/cublas_workspace.h"

#include <gtest/gtest.h>

namespace metroplex::device::cublas_workspace_test {
namespace {

constexpr int64_t kKib = 1024, kMib = 1024 * kKib;

TEST(CublasWorkspace, IsLargerOnHopperAndWhereNobodyKnows) {
  for (const int capability : {90, 0})
    EXPECT_EQ(cublas_workspace_bytes(capability, std::nullopt), 32 * kMib) << capability;
  for (const int capability : {80, 86, 89, 100, 103, 120})
    EXPECT_EQ(cublas_workspace_bytes(capability, std::nullopt), 8 * kMib + 128 * kKib) << capability;
}

TEST(CublasWorkspace, IsWhatTheEnvironmentSaysOnAnyGpu) {
  for (const int capability : {0, 80, 90}) {
    EXPECT_EQ(cublas_workspace_bytes(capability, ":4096:8"), 32 * kMib);
    EXPECT_EQ(cublas_workspace_bytes(capability, ":16:8"), 128 * kKib);
    EXPECT_EQ(cublas_workspace_bytes(capability, ":4096:2:16:8"), 8 * kMib + 128 * kKib);
    EXPECT_EQ(cublas_workspace_bytes(capability, ":0:0"), 0);
    EXPECT_EQ(cublas_workspace_bytes(capability, ":99999999999999999999:8"), cublas_workspace_bytes(capability, {}));
    EXPECT_EQ(cublas_workspace_bytes(capability, "large"), cublas_workspace_bytes(capability, std::nullopt));
  }
}

}  // namespace
}  // namespace metroplex::device::cublas_workspace_test

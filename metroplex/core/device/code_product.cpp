#include "device/code_product.h"

#include <ATen/BlasBackend.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDADataType.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <cublasLt.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "device/device.h"

namespace metroplex::device {
namespace {

void check(cublasStatus_t status, const char* call) {
  MPX_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuda", call, " failed: ", cublasLtGetStatusString(status));
}

template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct Destroyer {
  using pointer = Handle;
  void operator()(Handle handle) const { destroy(handle); }
};
using Description = std::unique_ptr<cublasLtMatmulDesc_t, Destroyer<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout =
    std::unique_ptr<cublasLtMatrixLayout_t, Destroyer<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreference_t,
                                   Destroyer<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

template <class Value>
void set(const Description& to, cublasLtMatmulDescAttributes_t name, const Value& value) {
  check(cublasLtMatmulDescSetAttribute(to.get(), name, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}

int32_t scale_mode(int scaling) {
  switch (static_cast<at::blas::ScalingType>(scaling)) {
    case at::blas::ScalingType::BlockWise1x16:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    case at::blas::ScalingType::BlockWise1x32:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    case at::blas::ScalingType::BlockWise1x128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case at::blas::ScalingType::BlockWise128x128:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    default:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  }
}

// cuBLAS stores columns consecutively: a row-major matrix [rows, columns] is its [columns, rows].
Layout make_layout(at::ScalarType type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, at::cuda::ScalarTypeToCudaDataType(type), static_cast<uint64_t>(columns),
                                   static_cast<uint64_t>(rows), columns),
        "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

Layout make_layout(const CodeOperand& operand) {
  const bool pairs = operand.codes.scalar_type() == at::kFloat4_e2m1fn_x2;
  return make_layout(operand.codes.scalar_type(), operand.codes.size(0), operand.codes.size(1) * (pairs ? 2 : 1));
}

// right left^T in column-major order is left right^T in row-major order.
Description describe(const CodeProduct& product) {
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  Description of_product(made);
  set(of_product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(of_product, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  set(of_product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.right.factors.const_data_ptr());
  set(of_product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.left.factors.const_data_ptr());
  set(of_product, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(product.right.scaling));
  set(of_product, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(product.left.scaling));
  if (product.scale.defined())
    set(of_product, CUBLASLT_MATMUL_DESC_POINTER_MODE, static_cast<int32_t>(CUBLASLT_POINTER_MODE_DEVICE));
  return of_product;
}

template <class Value>
void set(const Preference& to, cublasLtMatmulPreferenceAttributes_t name, const Value& value) {
  check(cublasLtMatmulPreferenceSetAttribute(to.get(), name, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

// Views of a gradient buffer may begin at any element. The library assumes 256 bytes.
uint32_t alignment(const at::Tensor& x) {
  const auto address = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  return static_cast<uint32_t>(std::min<uintptr_t>(256, address & -address));
}

Preference make_preference(const CodeProduct& product, size_t workspace) {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(product.right.codes));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(product.left.codes));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(product.out));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(product.out));
  return preference;
}

}  // namespace

bool multiply_codes(const CodeProduct& product) {
  const Description of_product = describe(product);
  const Layout right = make_layout(product.right), left = make_layout(product.left),
               out = make_layout(product.out.scalar_type(), product.out.size(0), product.out.size(1));
  const size_t workspace = at::cuda::getCUDABlasLtWorkspaceSize();
  const Preference preference = make_preference(product, workspace);
  const cublasLtHandle_t library = at::cuda::getCurrentCUDABlasLtHandle();
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t searched = cublasLtMatmulAlgoGetHeuristic(
      library, of_product.get(), right.get(), left.get(), out.get(), out.get(), preference.get(), 1, &found, &count);
  if (searched == CUBLAS_STATUS_NOT_SUPPORTED || count == 0) return false;
  check(searched, "cublasLtMatmulAlgoGetHeuristic");
  const float one = 1, beta = product.adds ? 1 : 0;
  at::Tensor scales;  // on the device: [scale, beta]
  const void *alpha_at = &one, *beta_at = &beta;
  if (product.scale.defined()) {
    scales = at::stack({product.scale.view({}), at::ones({}, product.scale.options()).mul_(beta)});
    alpha_at = scales.const_data_ptr<float>(), beta_at = scales.const_data_ptr<float>() + 1;
  }
  void* const data = product.out.mutable_data_ptr();
  check(cublasLtMatmul(library, of_product.get(), alpha_at, product.right.codes.const_data_ptr(), right.get(),
                       product.left.codes.const_data_ptr(), left.get(), beta_at, data, out.get(), data, out.get(),
                       &found.algo, at::cuda::getCUDABlasLtWorkspace(), workspace, current_stream()),
        "cublasLtMatmul");
  return true;
}

}  // namespace metroplex::device

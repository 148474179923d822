#include "nn/product_choice.h"

#include <ATen/cpu/Utils.h>

#include <utility>

#include "nn/torch_compat.h"

namespace metroplex::nn {

ProductChoice choose_products(const Processor& processor) {
  return {.onednn_floats = !processor.intel && processor.avx512,
          .mkl_bf16_sums = processor.intel && processor.bf16,
          .own_bf16_sums = !processor.intel && processor.bf16};
}

Processor this_processor() {
#if defined(__x86_64__)
  // A process must request AMX. Without this call, MKL would use AMX only after another product has requested it.
  const bool amx = at::cpu::init_amx();
  return {.intel = __builtin_cpu_is("intel") != 0,
          .avx512 = __builtin_cpu_supports("avx512f") != 0,
          .bf16 = amx || __builtin_cpu_supports("avx512bf16") != 0};
#else
  return {};
#endif
}

ProductChoice& product_choice() {
  static ProductChoice choice = [] {
    ProductChoice chosen = choose_products(this_processor());
    if (cblas_gemm_bf16bf16f32 == nullptr) {
      chosen.own_bf16_sums = std::exchange(chosen.mkl_bf16_sums, false) || chosen.own_bf16_sums;
    }
    return chosen;
  }();
  return choice;
}

}  // namespace metroplex::nn

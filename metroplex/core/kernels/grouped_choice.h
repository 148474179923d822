// Selects the implementation of grouped products by device and element type: the first matching row of one table.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/grouped_product.h"
#include "kernels/grouped_tile.h"
#include "kernels/number.h"

namespace metroplex::kernels {

enum class CpuNeeds : uint8_t { nothing, avx2, avx512, avx512_bf16, amx_bf16, amx_fp16 };
bool cpu_has(CpuNeeds needs);

template <class T>
constexpr Number kElementNumber = std::is_same_v<T, Bf16>  ? Number::bf16
                                  : std::is_same_v<T, F16> ? Number::f16
                                                           : kNumberOf<T>;

struct GroupedChoice {
  bool gpu;
  Number number;
  CpuNeeds needs;
  const char* name;
  // CPU only.
  GroupedBlockProduct product = nullptr;
  GroupedCut (*cut)() = nullptr;
  GroupedHook begin = nullptr, end = nullptr;  // called before and after a thread's blocks; may be null
  // GPU only: libtorch's product instead of our kernel (moe/grouped_library.h). It runs without host synchronization
  // only for compute capabilities in [from, below).
  bool library = false;
  int from = 0, below = 1000;
};

// `capability`: of the GPU, 90 for sm_90; 0: unknown.
const GroupedChoice& grouped_choice(bool gpu, Number number, int capability = 0);
// Returns all implementations that this machine supports, best first.
std::vector<const GroupedChoice*> grouped_choices(bool gpu, Number number, int capability = 0);
void grouped_product_by(const GroupedChoice& choice, const int64_t* arguments, const GroupedShape& shape);

GroupedCut wide_cut();
GroupedCut half_cut();
GroupedCut amx_cut();
void amx_begin();
void amx_end();

#define MPX_BLOCK(name) void name(const GroupedWork& work, const GroupedWork* next, char* scratch)
MPX_BLOCK(float_avx512);
MPX_BLOCK(float_avx2);
MPX_BLOCK(float_plain);
MPX_BLOCK(double_avx512);
MPX_BLOCK(double_avx2);
MPX_BLOCK(double_plain);
MPX_BLOCK(bf16_avx512);
MPX_BLOCK(bf16_avx2);
MPX_BLOCK(bf16_plain);
MPX_BLOCK(f16_avx512);
MPX_BLOCK(f16_avx2);
MPX_BLOCK(f16_plain);
MPX_BLOCK(bf16_amx);
MPX_BLOCK(bf16_dots);
MPX_BLOCK(f16_amx);
#undef MPX_BLOCK

}  // namespace metroplex::kernels

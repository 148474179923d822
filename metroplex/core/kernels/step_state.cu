#include "kernels/launch.h"
#include "kernels/step_state_math.h"

namespace metroplex::kernels {
namespace {

__global__ void loss_factors_kernel(const StepValues* values, const double* tokens, double* factors,
                                    LossFactorShape shape) {
  for (int64_t m = threadIdx.x; m < shape.microbatches; m += blockDim.x)
    factors[m] = loss_factor(values->loss_scale, tokens[m], shape);
}
__global__ void own_sums_kernel(OwnLosses own, SumsPlace place) { add_own(own, place); }
__global__ void judge_kernel(StepRules rules, JudgePlace place) { judge(rules, place, ::sqrt(place.numbers[0])); }

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const StepValues* values, bool when, const void* from, void* to, int64_t bytes) {
  if ((values->updates != 0) != when) return;
  const int64_t words = bytes / 4, first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < words; i += int64_t{gridDim.x} * kThreads)
    static_cast<uint32_t*>(to)[i] = static_cast<const uint32_t*>(from)[i];
  if (first < bytes - 4 * words)
    static_cast<uint8_t*>(to)[4 * words + first] = static_cast<const uint8_t*>(from)[4 * words + first];
}

}  // namespace

void copy_if_updates_cuda(const StepValues* values, bool when, const void* from, void* to, int64_t bytes,
                          CUstream_st* stream) {
  if (bytes == 0) return;
  launch_kernel("copy_if_updates", copy_kernel, Grid{blocks_for((bytes + 3) / 4), kThreads, 0, stream}, values, when,
                from, to, bytes);
}
void loss_factors_cuda(const StepValues* values, const double* tokens, double* factors, const LossFactorShape& shape,
                       CUstream_st* stream) {
  launch_kernel("loss_factors", loss_factors_kernel, Grid{1, kThreads, 0, stream}, values, tokens, factors, shape);
}
void own_sums_cuda(const OwnLosses& own, const SumsPlace& place, CUstream_st* stream) {
  launch_kernel("own_sums", own_sums_kernel, Grid{1, 1, 0, stream}, own, place);
}
void judge_step_cuda(const StepRules& rules, const JudgePlace& place, CUstream_st* stream) {
  launch_kernel("judge_step", judge_kernel, Grid{1, 1, 0, stream}, rules, place);
}

}  // namespace metroplex::kernels

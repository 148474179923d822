#include "cuda/kernels/launch.h"
#include "cuda/kernels/step_state_math.h"

namespace metroplex::cuda::kernels {
namespace {

__global__ void loss_factors_kernel(const StepValues* values, const double* tokens, double* factors,
                                    LossFactorShape shape) {
  for (int64_t m = threadIdx.x; m < shape.microbatches; m += blockDim.x)
    factors[m] = loss_factor(values->loss_scale, tokens[m], shape);
}
__global__ void own_sums_kernel(OwnLosses own, SumsPlace place) { add_own(own, place); }
__global__ void judge_kernel(StepRules rules, JudgePlace place) { judge(rules, place, ::sqrt(place.numbers[0])); }

}  // namespace

void loss_factors_cuda(const StepValues* values, const double* tokens, double* factors, const LossFactorShape& shape,
                       CUstream_st* stream) {
  loss_factors_kernel<<<1, kThreads, 0, stream>>>(values, tokens, factors, shape);
  check_launch("loss_factors");
}
void own_sums_cuda(const OwnLosses& own, const SumsPlace& place, CUstream_st* stream) {
  own_sums_kernel<<<1, 1, 0, stream>>>(own, place);
  check_launch("own_sums");
}
void judge_step_cuda(const StepRules& rules, const JudgePlace& place, CUstream_st* stream) {
  judge_kernel<<<1, 1, 0, stream>>>(rules, place);
  check_launch("judge_step");
}

}  // namespace metroplex::cuda::kernels

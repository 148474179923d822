// Stands in for all .cu files where there is no nvcc.
#include "base/error.h"
#include "cuda/kernels/activation.h"
#include "cuda/kernels/balance.h"
#include "cuda/kernels/blocked_attention.h"
#include "cuda/kernels/compiled.h"
#include "cuda/kernels/cross_entropy.h"
#include "cuda/kernels/dropout.h"
#include "cuda/kernels/embedding.h"
#include "cuda/kernels/expert_rows.h"
#include "cuda/kernels/grouped_product.h"
#include "cuda/kernels/dropout_norm.h"
#include "cuda/kernels/norm.h"
#include "cuda/kernels/optimizer_step.h"
#include "cuda/kernels/optimizer_storage.h"
#include "cuda/kernels/optimizer_sums.h"
#include "cuda/kernels/permutation.h"
#include "cuda/kernels/random_rows.h"
#include "cuda/kernels/rope.h"
#include "cuda/kernels/route.h"
#include "cuda/kernels/sinkhorn.h"
#include "cuda/kernels/step_state.h"

namespace metroplex::cuda::kernels {
namespace {

[[noreturn]] void no_kernel(const char* name) {
  base::throw_error("cuda", base::concat("kernel ", name,
                                         " is not in this program: it was built without nvcc; install the CUDA 13.0 "
                                         "toolkit and build again"));
}

}  // namespace

bool compiled() { return false; }
bool compiled_for(int) { return false; }

template <class In, class Out>
void bias_dropout_add_cuda(const DropoutOperands<In, Out>&, const DropoutShape&, CUstream_st*) {
  no_kernel("bias_dropout_add");
}

template <class T>
void activation_forward_cuda(T*, const Wide<T>*, T*, const ActivationShape&, CUstream_st*) {
  no_kernel("activation");
}
template <class T>
void activation_backward_cuda(const T*, const T*, const Wide<T>*, T*, const ActivationShape&, CUstream_st*) {
  no_kernel("activation");
}
template <class T>
void attention_forward_cuda(const AttentionForward<T>&, const AttentionShape&, const AttentionScratch&,
                            CUstream_st*) {
  no_kernel("attention_forward");
}
template <class T>
void attention_backward_cuda(const AttentionBackward<T>&, const AttentionShape&, const AttentionScratch&,
                             CUstream_st*) {
  no_kernel("attention_backward");
}
template <class T>
void gather_rows_cuda(const T*, const int64_t*, T*, bool, const TableShape&, CUstream_st*) {
  no_kernel("gather_rows");
}
template <class Table, class Dout>
void scatter_add_rows_cuda(Table*, const SortedIndices&, const Dout*, const TableShape&, CUstream_st*) {
  no_kernel("scatter_add_rows");
}
#define MPX_GATHER(T) \
  template void gather_rows_cuda<T>(const T*, const int64_t*, T*, bool, const TableShape&, CUstream_st*)
#define MPX_SCATTER(Dout, Table)                                                                                 \
  template void scatter_add_rows_cuda<Table, Dout>(Table*, const SortedIndices&, const Dout*, const TableShape&, \
                                                   CUstream_st*)
MPX_FOR_ELEMENTS(MPX_GATHER);
MPX_FOR_ELEMENT_PAIRS(MPX_SCATTER);

void plan_permutation_cuda(const int64_t*, const PermutationPlan&, const PermutationShape&, CUstream_st*) {
  no_kernel("plan_permutation");
}
void plan_regroup_cuda(const int64_t*, const PermutationPlan&, const RegroupShape&, CUstream_st*) {
  no_kernel("plan_regroup");
}
template <class T>
void permute_rows_cuda(const T*, const int64_t*, T*, const RowsShape&, CUstream_st*) {
  no_kernel("permute_rows");
}
template <class T>
void sum_rows_cuda(const T*, const int64_t*, T*, const SumShape&, CUstream_st*) {
  no_kernel("sum_rows");
}

template <class T>
void expert_activation_cuda(const T*, const T*, const Wide<T>*, const int64_t*, T*, const ExpertShape&,
                            CUstream_st*) {
  no_kernel("expert_activation");
}
template <class T>
void expert_activation_backward_cuda(const ExpertActivationGradient<T>&, const int64_t*, const ExpertShape&,
                                     CUstream_st*) {
  no_kernel("expert_activation_backward");
}
template <class T>
void expert_bias_cuda(T*, const T*, const Wide<T>*, const int64_t*, const ExpertShape&, CUstream_st*) {
  no_kernel("expert_bias");
}
template <class T>
void expert_bias_probs_cuda(const T*, const T*, const int64_t*, Wide<T>*, const ExpertShape&, CUstream_st*) {
  no_kernel("expert_bias_probs");
}
template <class T>
void expert_sums_cuda(const T*, const Wide<T>*, const int64_t*, Wide<T>*, const ExpertShape&, CUstream_st*) {
  no_kernel("expert_sums");
}
template <class T>
void expert_scale_cuda(const T*, const Wide<T>*, const int64_t*, T*, const ExpertShape&, CUstream_st*) {
  no_kernel("expert_scale");
}
template <class T>
void expert_scale_backward_cuda(const ExpertActivationGradient<T>&, const int64_t*, const ExpertShape&,
                                CUstream_st*) {
  no_kernel("expert_scale_backward");
}
#define MPX_EXPERT(T)                                                                                                \
  template void expert_activation_cuda<T>(const T*, const T*, const Wide<T>*, const int64_t*, T*,                    \
                                          const ExpertShape&, CUstream_st*);                                         \
  template void expert_activation_backward_cuda<T>(const ExpertActivationGradient<T>&, const int64_t*,               \
                                                   const ExpertShape&, CUstream_st*);                                \
  template void expert_bias_cuda<T>(T*, const T*, const Wide<T>*, const int64_t*, const ExpertShape&, CUstream_st*); \
  template void expert_bias_probs_cuda<T>(const T*, const T*, const int64_t*, Wide<T>*, const ExpertShape&,          \
                                          CUstream_st*);                                                             \
  template void expert_sums_cuda<T>(const T*, const Wide<T>*, const int64_t*, Wide<T>*, const ExpertShape&,          \
                                    CUstream_st*);                                                                   \
  template void expert_scale_cuda<T>(const T*, const Wide<T>*, const int64_t*, T*, const ExpertShape&,               \
                                     CUstream_st*);                                                                  \
  template void expert_scale_backward_cuda<T>(const ExpertActivationGradient<T>&, const int64_t*,                    \
                                              const ExpertShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_EXPERT);

void grouped_arguments_cuda(const int64_t*, const GroupedSource&, int64_t*, CUstream_st*) {
  no_kernel("grouped_arguments");
}
template <class T>
void grouped_product_cuda(const int64_t*, const GroupedShape&, CUstream_st*) {
  no_kernel("grouped_product");
}
template <class T>
void rope_cuda(T*, const Wide<T>*, const Wide<T>*, int, const RopeShape&, CUstream_st*) {
  no_kernel("rope");
}
template <class T>
void cross_entropy_statistics_cuda(const T*, const int64_t*, const RowStatistics<Wide<T>>&, const LogitsShape&,
                                   CUstream_st*) {
  no_kernel("cross_entropy_statistics");
}
template <class T>
void cross_entropy_backward_cuda(T*, const int64_t*, const CrossEntropyGradient<Wide<T>>&, const LogitsShape&,
                                 CUstream_st*) {
  no_kernel("cross_entropy_backward");
}
template <class In, class Out>
void norm_forward_cuda(const NormForward<In, Out>&, const NormShape&, CUstream_st*) {
  no_kernel("norm_forward");
}
template <class In, class Out>
void norm_backward_cuda(const NormBackward<In, Out>&, Wide<In>*, const NormShape&, CUstream_st*) {
  no_kernel("norm_backward");
}
template <class In, class Out>
void dropout_norm_forward_cuda(const DropoutOperands<Out, In>&, const NormForward<In, Out>&, const DropoutNormShape&,
                               CUstream_st*) {
  no_kernel("dropout_norm_forward");
}
template <class In, class Out>
void dropout_norm_backward_cuda(const NormBackward<In, Out>&, Out*, Wide<In>*, const DropoutNormShape&,
                                CUstream_st*) {
  no_kernel("dropout_norm_backward");
}

#define MPX_ELEMENT(T)                                                                                      \
  template void activation_forward_cuda<T>(T*, const Wide<T>*, T*, const ActivationShape&, CUstream_st*);   \
  template void activation_backward_cuda<T>(const T*, const T*, const Wide<T>*, T*, const ActivationShape&, \
                                            CUstream_st*);                                                  \
  template void grouped_product_cuda<T>(const int64_t*, const GroupedShape&, CUstream_st*);                 \
  template void attention_forward_cuda<T>(const AttentionForward<T>&, const AttentionShape&,                \
                                          const AttentionScratch&, CUstream_st*);                           \
  template void attention_backward_cuda<T>(const AttentionBackward<T>&, const AttentionShape&,              \
                                           const AttentionScratch&, CUstream_st*);                          \
  template void permute_rows_cuda<T>(const T*, const int64_t*, T*, const RowsShape&, CUstream_st*);         \
  template void sum_rows_cuda<T>(const T*, const int64_t*, T*, const SumShape&, CUstream_st*);              \
  template void rope_cuda<T>(T*, const Wide<T>*, const Wide<T>*, int, const RopeShape&, CUstream_st*);      \
  template void cross_entropy_statistics_cuda<T>(const T*, const int64_t*, const RowStatistics<Wide<T>>&,   \
                                                 const LogitsShape&, CUstream_st*);                         \
  template void cross_entropy_backward_cuda<T>(T*, const int64_t*, const CrossEntropyGradient<Wide<T>>&,    \
                                               const LogitsShape&, CUstream_st*)
MPX_FOR_ELEMENTS(MPX_ELEMENT);
#define MPX_PAIR(Out, In)                                                                                        \
  template void norm_forward_cuda<In, Out>(const NormForward<In, Out>&, const NormShape&, CUstream_st*);         \
  template void norm_backward_cuda<In, Out>(const NormBackward<In, Out>&, Wide<In>*, const NormShape&,           \
                                            CUstream_st*);                                                       \
  template void dropout_norm_forward_cuda<In, Out>(const DropoutOperands<Out, In>&, const NormForward<In, Out>&, \
                                                   const DropoutNormShape&, CUstream_st*);                       \
  template void dropout_norm_backward_cuda<In, Out>(const NormBackward<In, Out>&, Out*, Wide<In>*,               \
                                                    const DropoutNormShape&, CUstream_st*)
MPX_FOR_ELEMENT_PAIRS(MPX_PAIR);

#define MPX_INSTANTIATE(In, Out) \
  template void bias_dropout_add_cuda<In, Out>(const DropoutOperands<In, Out>&, const DropoutShape&, CUstream_st*)
MPX_FOR_ELEMENT_CASTS(MPX_INSTANTIATE);

template <class T>
void random_rows_cuda(T*, Noise, const DropoutShape&, CUstream_st*) {
  no_kernel("random_rows");
}
template <class T>
void sinkhorn_cuda(const T*, T*, T*, const SinkhornShape&, CUstream_st*) {
  no_kernel("sinkhorn");
}
template <class T>
void route_forward_cuda(const RouteForward<T>&, const RouteShape&, CUstream_st*) {
  no_kernel("route_forward");
}
template <class T>
void route_backward_cuda(const RouteBackward<T>&, const RouteShape&, CUstream_st*) {
  no_kernel("route_backward");
}
template <class T>
void balance_forward_cuda(const T*, double*, double*, const BalanceShape&, CUstream_st*) {
  no_kernel("balance");
}
template <class T>
void balance_backward_cuda(const T*, const double*, T*, const BalanceShape&, CUstream_st*) {
  no_kernel("balance_backward");
}
#define MPX_WIDE(T)                                                                                       \
  template void balance_forward_cuda<T>(const T*, double*, double*, const BalanceShape&, CUstream_st*);   \
  template void balance_backward_cuda<T>(const T*, const double*, T*, const BalanceShape&, CUstream_st*); \
  template void random_rows_cuda<T>(T*, Noise, const DropoutShape&, CUstream_st*);                        \
  template void sinkhorn_cuda<T>(const T*, T*, T*, const SinkhornShape&, CUstream_st*);                   \
  template void route_forward_cuda<T>(const RouteForward<T>&, const RouteShape&, CUstream_st*);           \
  template void route_backward_cuda<T>(const RouteBackward<T>&, const RouteShape&, CUstream_st*)
MPX_WIDE(float);
MPX_WIDE(double);

void gradient_sums_cuda(const void*, Number, int64_t, const GradientSumsPlace&, CUstream_st*) {
  no_kernel("gradient_sums");
}
void block8_encode_cuda(const float*, int64_t, bool, uint8_t*, float*, CUstream_st*) { no_kernel("block8_encode"); }
void block8_decode_cuda(const uint8_t*, const float*, int64_t, bool, float*, CUstream_st*) {
  no_kernel("block8_decode");
}
void split_floats_cuda(const float*, int64_t, uint16_t*, uint16_t*, CUstream_st*) { no_kernel("split_floats"); }
void join_floats_cuda(const uint16_t*, const uint16_t*, int64_t, float*, CUstream_st*) { no_kernel("join_floats"); }
void adam_step_cuda(const OptimizerRange&, const AdamHyper&, const StepPlace&, CUstream_st*) {
  no_kernel("adam_step");
}
void sgd_step_cuda(const OptimizerRange&, const SgdHyper&, const StepPlace&, CUstream_st*) { no_kernel("sgd_step"); }
void lion_step_cuda(const OptimizerRange&, const LionHyper&, const StepPlace&, CUstream_st*) {
  no_kernel("lion_step");
}
void loss_factors_cuda(const StepValues*, const double*, double*, const LossFactorShape&, CUstream_st*) {
  no_kernel("loss_factors");
}
void own_sums_cuda(const OwnLosses&, const SumsPlace&, CUstream_st*) { no_kernel("own_sums"); }
void copy_if_updates_cuda(const StepValues*, bool, const void*, void*, int64_t, CUstream_st*) {
  no_kernel("copy_if_updates");
}
void judge_step_cuda(const StepRules&, const JudgePlace&, CUstream_st*) { no_kernel("judge_step"); }

}  // namespace metroplex::cuda::kernels

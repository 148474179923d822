// Replaces all .cu files in builds without nvcc. Each kernel is one line with its arguments; the template
// instances are listed at the end of the file.
#include "base/error.h"
#include "kernels/accumulate.h"
#include "kernels/activation.h"
#include "kernels/balance.h"
#include "kernels/random_rows.h"
#include "kernels/route.h"
#include "kernels/shard_codes.h"
#include "kernels/sinkhorn.h"
#include "kernels/attention_scores.h"
#include "kernels/compiled.h"
#include "kernels/column_sums.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/echo_plan.h"
#include "kernels/encode_matrix.h"
#include "kernels/embedding.h"
#include "kernels/expert_rows.h"
#include "kernels/grouped_product.h"
#include "kernels/heads.h"
#include "kernels/dropout_norm.h"
#include "kernels/norm.h"
#include "kernels/optimizer_step.h"
#include "kernels/pages.h"
#include "kernels/block8.h"
#include "kernels/permutation.h"
#include "kernels/rope.h"
#include "kernels/row_codes.h"
#include "kernels/round_blocks.h"
#include "kernels/rounding_errors.h"
#include "kernels/step_state.h"
#include "kernels/weight_codes.h"

namespace metroplex::kernels {
namespace {

[[noreturn]] void no_kernel(const char* name) {
  base::throw_error("cuda", base::concat("kernel ", name,
                                         " is not in this program: it was built without nvcc; install the CUDA 13.0 "
                                         "toolkit and build again"));
}

}  // namespace

bool compiled() { return false; }
bool compiled_for(int) { return false; }
std::string architectures() { return ""; }

#define MPX_NO_KERNEL(name, ...) \
  void name##_cuda(__VA_ARGS__, CUstream_st*) { no_kernel(#name); }

MPX_NO_KERNEL(transpose_codes, uint8_t*, const uint8_t*, int64_t, int64_t, bool)
MPX_NO_KERNEL(plan_permutation, const int64_t*, const PermutationPlan&, const PermutationShape&)
MPX_NO_KERNEL(plan_regroup, const int64_t*, const PermutationPlan&, const RegroupShape&)
MPX_NO_KERNEL(echo_plan, const int64_t*, const EchoPlanPlace&, const EchoPlanShape&)
MPX_NO_KERNEL(echo_columns, const EchoColumnsPlace&, const EchoColumnsShape&)
MPX_NO_KERNEL(take_pages, const PageTake&, const PageShape&)
MPX_NO_KERNEL(give_pages, const int32_t*, int32_t*, const PageShape&)
MPX_NO_KERNEL(rows_to_pages, const void*, const PagedRows&, const PageShape&)
MPX_NO_KERNEL(rows_from_pages, const PagedRows&, void*, const PageShape&)
MPX_NO_KERNEL(grouped_arguments, const int64_t*, const GroupedSource&, int64_t*)
MPX_NO_KERNEL(group_ends, const int64_t*, int64_t, int64_t, int32_t*)
MPX_NO_KERNEL(gradient_sums, const std::vector<GradientRange>&, const GradientSumsPlace&)
MPX_NO_KERNEL(sum_shards, const std::vector<ShardSum>&, const ReceivedShards&)
MPX_NO_KERNEL(block8_encode, const float*, int64_t, bool, uint8_t*, float*)
MPX_NO_KERNEL(block8_decode, const uint8_t*, const float*, int64_t, bool, float*)
MPX_NO_KERNEL(split_floats, const float*, int64_t, uint16_t*, uint16_t*)
MPX_NO_KERNEL(join_floats, const uint16_t*, const uint16_t*, int64_t, float*)
MPX_NO_KERNEL(adam_step, const std::vector<RatedRange>&, const AdamHyper&, const StepValues*)
MPX_NO_KERNEL(sgd_step, const std::vector<RatedRange>&, const SgdHyper&, const StepValues*)
MPX_NO_KERNEL(lion_step, const std::vector<RatedRange>&, const LionHyper&, const StepValues*)
MPX_NO_KERNEL(loss_factors, const StepValues*, const double*, double*, const LossFactorShape&)
MPX_NO_KERNEL(own_sums, const OwnLosses&, const SumsPlace&)
MPX_NO_KERNEL(copy_if_updates, const StepValues*, bool, const void*, void*, int64_t)
MPX_NO_KERNEL(judge_step, const StepRules&, const JudgePlace&)

template <class T>
MPX_NO_KERNEL(add_elements, float*, const T*, int64_t, bool)
template <class T>
MPX_NO_KERNEL(activation_forward, T*, const T*, T*, const ActivationShape&)
template <class T>
MPX_NO_KERNEL(activation_backward, const T*, const T*, const T*, T*, Wide<T>*, const ActivationShape&)
template <class T>
MPX_NO_KERNEL(attention_softmax, const AttentionSoftmax<T>&, const AttentionShape&, const ScoreBlock&)
template <class T>
MPX_NO_KERNEL(attention_softmax_backward, const AttentionSoftmaxBackward<T>&, const AttentionShape&,
              const ScoreBlock&)
template <class T>
MPX_NO_KERNEL(column_sums, Wide<T>*, const T*, Wide<T>*, const ColumnSumsShape&)
template <class T>
MPX_NO_KERNEL(gather_rows, const T*, const int64_t*, T*, bool, const TableShape&)
template <class T>
MPX_NO_KERNEL(permute_rows, const T*, const int64_t*, T*, const RowsShape&, const RowNumbers&)
template <class T>
MPX_NO_KERNEL(sum_rows, const T*, const int64_t*, T*, const SumShape&)
template <class T>
MPX_NO_KERNEL(expert_activation, const T*, const T*, const Wide<T>*, const int64_t*, T*, const ExpertShape&)
template <class T>
MPX_NO_KERNEL(expert_activation_backward, const ExpertActivationGradient<T>&, const int64_t*, const ExpertShape&)
template <class T>
MPX_NO_KERNEL(expert_bias, T*, const T*, const Wide<T>*, const int64_t*, const ExpertShape&)
template <class T>
MPX_NO_KERNEL(expert_bias_probs, const T*, const T*, const int64_t*, Wide<T>*, const ExpertShape&)
template <class T>
MPX_NO_KERNEL(expert_sums, const T*, const Wide<T>*, const int64_t*, Wide<T>*, const ExpertShape&)
template <class T>
MPX_NO_KERNEL(expert_scale, const T*, const Wide<T>*, const int64_t*, T*, const ExpertShape&)
template <class T>
MPX_NO_KERNEL(expert_scale_backward, const ExpertActivationGradient<T>&, const int64_t*, const ExpertShape&)
template <class T>
MPX_NO_KERNEL(grouped_product, const int64_t*, const GroupedShape&)
template <class T>
MPX_NO_KERNEL(split_heads, const T*, const HeadRegions<T>&, const HeadsShape&)
template <class T>
MPX_NO_KERNEL(join_heads, T*, const HeadRegions<T>&, const HeadsShape&)
template <class T>
MPX_NO_KERNEL(rope, T*, const Wide<T>*, const Wide<T>*, int, const RopeShape&)
template <class T>
MPX_NO_KERNEL(largest_magnitudes, Wide<T>*, Wide<T>*, const T*, const int64_t*, const RoundShape&)
template <class T, class Out>
MPX_NO_KERNEL(round_blocks, Out*, const T*, const Wide<T>*, const int64_t*, const RoundShape&, const RoundingNoise&,
              Wide<T>*)
template <class T>
MPX_NO_KERNEL(encode_values, const EncodedValues<Wide<T>>&, const T*, const Wide<T>*, const int64_t*,
              const RoundShape&, const RoundingNoise&)
template <class T>
MPX_NO_KERNEL(encode_matrix, const EncodedMatrix<Wide<T>>&, Wide<T>*, const T*, const Wide<T>*, const MatrixShape&)
template <class T>
MPX_NO_KERNEL(shard_magnitudes, Wide<T>*, const T*, const ShardShape&)
template <class T>
MPX_NO_KERNEL(encode_shard, uint8_t*, Wide<T>*, const T*, const Wide<T>*, const ShardShape&)
template <class T>
MPX_NO_KERNEL(rotate_rows, T*, const T*, const int64_t*, const RoundShape&)
template <class T>
MPX_NO_KERNEL(rounding_errors, RoundingFigures*, RoundingFigures*, const RoundedOperand<T>&)
template <class T>
MPX_NO_KERNEL(encode_e4m3, uint8_t*, float*, const T*, const CodesShape&)
template <class T>
MPX_NO_KERNEL(decode_e4m3, T*, const uint8_t*, const float*, const CodesShape&)
template <class T>
MPX_NO_KERNEL(encode_e2m1, const E2m1Codes&, const T*, const Wide<T>*, const CodesShape&)
template <class T>
MPX_NO_KERNEL(decode_e2m1, T*, const E2m1Codes&, const CodesShape&)
template <class T>
MPX_NO_KERNEL(encode_rows, uint8_t*, const T*, const RowCodesShape&)
template <class T>
MPX_NO_KERNEL(decode_rows, T*, const uint8_t*, const RowCodesShape&)
template <class T>
MPX_NO_KERNEL(cross_entropy_statistics, const T*, const int64_t*, const RowStatistics<Wide<T>>&, const LogitsShape&)
template <class T>
MPX_NO_KERNEL(cross_entropy_backward, T*, const int64_t*, const CrossEntropyGradient<Wide<T>>&, const LogitsShape&)
template <class T>
MPX_NO_KERNEL(random_rows, T*, Noise, const DropoutShape&)
template <class T>
MPX_NO_KERNEL(sinkhorn, const T*, T*, T*, const SinkhornShape&)
template <class T>
MPX_NO_KERNEL(route_forward, const RouteForward<T>&, const RouteShape&)
template <class T>
MPX_NO_KERNEL(route_backward, const RouteBackward<T>&, const RouteShape&)
MPX_NO_KERNEL(balance_term, const double*, const double*, double*, double*, const BalanceTerm&) template <class T>
MPX_NO_KERNEL(sum_lines, const LineSumsTable<T>&)
template <class T>
MPX_NO_KERNEL(balance_forward, const BalanceInputs<T>&, double*, double*, const BalanceShape&)
template <class T>
MPX_NO_KERNEL(balance_backward, const T*, const double*, const double*, T*, const BalanceShape&)
template <class In, class Out>
MPX_NO_KERNEL(bias_dropout_add, const DropoutOperands<In, Out>&, const DropoutShape&)
template <class Table, class Dout>
MPX_NO_KERNEL(scatter_add_rows, Table*, const SortedIndices&, const Dout*, const TableShape&)
template <class In, class Out>
MPX_NO_KERNEL(norm_forward, const NormForward<In, Out>&, const NormShape&)
template <class In, class Out>
MPX_NO_KERNEL(norm_backward, const NormBackward<In, Out>&, const NormShape&)
template <class In, class Out>
MPX_NO_KERNEL(dropout_norm_forward, const DropoutOperands<Out, In>&, const NormForward<In, Out>&,
              const DropoutNormShape&)
template <class In, class Out>
MPX_NO_KERNEL(dropout_norm_backward, const NormBackward<In, Out>&, Out*, const DropoutNormShape&)

#undef MPX_NO_KERNEL

// Taking the address of a function instantiates it.
using Function = void (*)();

template <class T>
struct OfElement {
  static const Function kAll[];
};
template <class T>
const Function OfElement<T>::kAll[] = {Function(&activation_forward_cuda<T>),
                                       Function(&activation_backward_cuda<T>),
                                       Function(&attention_softmax_cuda<T>),
                                       Function(&attention_softmax_backward_cuda<T>),
                                       Function(&column_sums_cuda<T>),
                                       Function(&gather_rows_cuda<T>),
                                       Function(&permute_rows_cuda<T>),
                                       Function(&sum_rows_cuda<T>),
                                       Function(&expert_activation_cuda<T>),
                                       Function(&expert_activation_backward_cuda<T>),
                                       Function(&expert_bias_cuda<T>),
                                       Function(&expert_bias_probs_cuda<T>),
                                       Function(&expert_sums_cuda<T>),
                                       Function(&expert_scale_cuda<T>),
                                       Function(&expert_scale_backward_cuda<T>),
                                       Function(&grouped_product_cuda<T>),
                                       Function(&split_heads_cuda<T>),
                                       Function(&join_heads_cuda<T>),
                                       Function(&rope_cuda<T>),
                                       Function(&largest_magnitudes_cuda<T>),
                                       Function(&encode_values_cuda<T>),
                                       Function(&encode_matrix_cuda<T>),
                                       Function(&shard_magnitudes_cuda<T>),
                                       Function(&encode_shard_cuda<T>),
                                       Function(&rotate_rows_cuda<T>),
                                       Function(&rounding_errors_cuda<T>),
                                       Function(&encode_e4m3_cuda<T>),
                                       Function(&decode_e4m3_cuda<T>),
                                       Function(&encode_e2m1_cuda<T>),
                                       Function(&decode_e2m1_cuda<T>),
                                       Function(&encode_rows_cuda<T>),
                                       Function(&decode_rows_cuda<T>),
                                       Function(&cross_entropy_statistics_cuda<T>),
                                       Function(&cross_entropy_backward_cuda<T>)};
#define MPX_ELEMENT(T) template struct OfElement<T>
MPX_FOR_ELEMENTS(MPX_ELEMENT);
#undef MPX_ELEMENT

template <class T>
struct OfHalf {
  static const Function kAll[];
};
template <class T>
const Function OfHalf<T>::kAll[] = {Function(&add_elements_cuda<T>)};
template struct OfHalf<Bf16>;
template struct OfHalf<F16>;

template <class T>
struct OfWide {
  static const Function kAll[];
};
template <class T>
const Function OfWide<T>::kAll[] = {Function(&sum_lines_cuda<T>),        Function(&balance_forward_cuda<T>),
                                    Function(&balance_backward_cuda<T>), Function(&random_rows_cuda<T>),
                                    Function(&sinkhorn_cuda<T>),         Function(&route_forward_cuda<T>),
                                    Function(&route_backward_cuda<T>)};
template struct OfWide<float>;
template struct OfWide<double>;

template <class Out, class In>
struct OfPair {
  static const Function kAll[];
};
template <class Out, class In>
const Function OfPair<Out, In>::kAll[] = {
    Function(&norm_forward_cuda<In, Out>), Function(&norm_backward_cuda<In, Out>),
    Function(&dropout_norm_forward_cuda<In, Out>), Function(&dropout_norm_backward_cuda<In, Out>),
    Function(&scatter_add_rows_cuda<In, Out>)};
#define MPX_PAIR(Out, In) template struct OfPair<Out, In>
MPX_FOR_ELEMENT_PAIRS(MPX_PAIR);
#undef MPX_PAIR

template <class In, class Out>
struct OfCast {
  static const Function kAll[];
};
template <class In, class Out>
const Function OfCast<In, Out>::kAll[] = {Function(&bias_dropout_add_cuda<In, Out>)};
#define MPX_CAST(In, Out) template struct OfCast<In, Out>
MPX_FOR_ELEMENT_CASTS(MPX_CAST);
#undef MPX_CAST

template <class In, class Out>
struct OfRounding {
  static const Function kAll[];
};
template <class In, class Out>
const Function OfRounding<In, Out>::kAll[] = {Function(&round_blocks_cuda<In, Out>)};
#define MPX_ROUNDING(In, Out) template struct OfRounding<In, Out>
MPX_FOR_ROUNDINGS(MPX_ROUNDING);
#undef MPX_ROUNDING

}  // namespace metroplex::kernels

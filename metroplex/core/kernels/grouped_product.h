// Matrix products of a layer's experts, all in one call. Activation rows are grouped by expert, and the row counts
// are only on the device. A first kernel writes pointers, leading dimensions and row counts of every group into
// device arrays; a second one multiplies with them. Weights are used in place. T is float, double, Bf16 or F16
// (half.h); sums are in Wide<T>.
#pragma once

#include <cstdint>

#include "kernels/half.h"

struct CUstream_st;

namespace metroplex::kernels {

enum class GroupedOp {
  forward,         // c [rows, out] = a [rows, in] times b^T, b [out, in]
  input_gradient,  // c [rows, in] = a [rows, out] times b [out, in]
  weight_gradient  // c [out, in] += (or =) a^T times b, a [rows, out], b [rows, in]
};

// Row-major. Group e starts `group_stride` elements after group e - 1; if group_stride is 0, after that group's last
// row. With a group stride, replicas start at `replicas` instead.
struct GroupedOperand {
  const void* base = nullptr;
  int64_t leading = 0, group_stride = 0, element_bytes = 0;
  const void* replicas = nullptr;
  const float* factors = nullptr;  // [groups] on the device: what the operand's values are multiplied by; null: 1
};

struct GroupedSource {
  GroupedOperand a, b, c;
  int64_t groups = 0;
  int64_t rows = 0;      // buffer size; counts beyond it are clamped
  int64_t replicas = 0;  // number of trailing groups that are replicas
  // For weight_gradient: whether c of a group is added to or overwritten (zeros for a group without rows).
  bool adds = true, replicas_add = false;
};

// The arguments are [kGroupedFields, groups] int64.
enum GroupedField : int64_t {
  kPointerA,
  kPointerB,
  kPointerC,
  kLeadingA,
  kLeadingB,
  kLeadingC,
  kGroupRows,
  kGroupAdds,
  kGroupFactor,  // bits of a float: the product of both operands' factors, which multiplies the sums
  kGroupedFields
};

// The factor of group e as kGroupFactor. Products below 2^-126 lose bits.
constexpr MPX_INLINE int64_t make_factor(const GroupedSource& source, int64_t e) {
  const float *const a = source.a.factors, *const b = source.b.factors;
  return __builtin_bit_cast(uint32_t, (a != nullptr ? a[e] : 1.0F) * (b != nullptr ? b[e] : 1.0F));
}
constexpr MPX_INLINE float read_factor(int64_t field) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(field));
}

struct GroupedShape {
  GroupedOp op = GroupedOp::forward;
  int64_t groups = 0, rows = 0, in = 0, out = 0;
  bool wide_sum = true;  // weight_gradient: c is Wide<T> instead of T
};

// counts [groups].
void grouped_arguments(const int64_t* counts, const GroupedSource& source, int64_t* arguments);
// ends[g] = the rows of groups up to and including g, at most `rows`.
void group_ends(const int64_t* counts, int64_t groups, int64_t rows, int32_t* ends);
template <class T>
void grouped_product(const int64_t* arguments, const GroupedShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails.
void grouped_arguments_cuda(const int64_t* counts, const GroupedSource& source, int64_t* arguments,
                            CUstream_st* stream);
void group_ends_cuda(const int64_t* counts, int64_t groups, int64_t rows, int32_t* ends, CUstream_st* stream);
template <class T>
void grouped_product_cuda(const int64_t* arguments, const GroupedShape& shape, CUstream_st* stream);

}  // namespace metroplex::kernels

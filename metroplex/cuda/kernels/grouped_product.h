// The products of the experts of a layer, one call for all of them. Rows of activations lie one expert behind the
// other, and how many each has only the device knows: a first kernel writes pointers, leading dimensions and row
// counts of every group into device arrays, a second one multiplies by them. So weights are read where they are.
// T is float, double, Bf16 or F16 (half.h); sums are in Wide<T>.
#pragma once

#include <cstdint>

#include "cuda/kernels/half.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

enum class GroupedOp {
  forward,         // c [rows, out] = a [rows, in] times b [out, in] transposed
  input_gradient,  // c [rows, in] = a [rows, out] times b [out, in]
  weight_gradient  // c [out, in] += (or =) a [rows, out] transposed times b [rows, in]
};

// Row-major; group e begins `group_stride` elements behind group e - 1, or, where that is 0, behind its last row.
// Where groups are a stride apart, those of clones begin at `clones` instead.
struct GroupedOperand {
  const void* base = nullptr;
  int64_t leading = 0, group_stride = 0, element_bytes = 0;
  const void* clones = nullptr;
};

struct GroupedSource {
  GroupedOperand a, b, c;
  int64_t groups = 0;
  int64_t rows = 0;    // all that there is room for: counts beyond are cut
  int64_t clones = 0;  // the last groups
  // Of weight_gradient: whether c of a group is added to or written, which leaves zeros for a group without rows.
  bool adds = true, clones_add = false;
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
  kGroupedFields
};

struct GroupedShape {
  GroupedOp op = GroupedOp::forward;
  int64_t groups = 0, rows = 0, in = 0, out = 0;
  bool wide_sum = true;  // weight_gradient: c is in Wide<T>, not in T
};

// counts [groups].
void grouped_arguments(const int64_t* counts, const GroupedSource& source, int64_t* arguments);
template <class T>
void grouped_product(const int64_t* arguments, const GroupedShape& shape);

// The same on a GPU, enqueued on `stream`; all pointers are of the device. base::Error("cuda", ...) when nothing was
// launched.
void grouped_arguments_cuda(const int64_t* counts, const GroupedSource& source, int64_t* arguments,
                            CUstream_st* stream);
template <class T>
void grouped_product_cuda(const int64_t* arguments, const GroupedShape& shape, CUstream_st* stream);

}  // namespace metroplex::cuda::kernels

// Clones of hot experts, planned where the counts are (plan/echo.h): who is cloned into which slot, and to which
// column each row of this rank goes. Nothing here is as long as what the counts say.
#pragma once

#include <cstdint>

#include "plan/echo.h"

struct CUstream_st;  // what cudaStream_t points to

namespace metroplex::cuda::kernels {

struct EchoPlanShape {
  plan::EchoSizes sizes;
  plan::EchoOptions options;  // on a GPU: capfill or exact, split local_first
  int rank = 0;               // the source rank that `ends` are of
};

// What a plan is written to. The clones of an expert are a list: first[e], then next[clone], ..., -1.
struct EchoPlanPlace {
  int32_t *owner, *first, *next;  // [clones], [experts], [clones]
  // [clones]: of the rows of `rank` for the owner those before this one, and not before that of the clone in front of
  // it in the list, go to the clone; those behind the last one's stay at home.
  int64_t* ends;
  int64_t *source_rows, *final_loads;  // [ranks][clones], [ranks]: as in EchoPlan
  int64_t* scratch;                    // [echo_plan_scratch(sizes)]
  int32_t* narrow_scratch;             // [echo_plan_narrow_scratch(sizes)]
};
constexpr int64_t echo_plan_scratch(const plan::EchoSizes& s) {
  const int64_t clones = s.clones(), experts = s.experts, ranks = s.ranks;
  return experts + 4 * ranks + clones + 3 * (clones + experts + ranks);
}
constexpr int64_t echo_plan_narrow_scratch(const plan::EchoSizes& s) {
  return s.ranks + 3 * (s.clones() + 2 * int64_t{s.ranks});
}

// counts [ranks, experts]: rows of each source rank for each expert.
void echo_plan(const int64_t* counts, const EchoPlanPlace& place, const EchoPlanShape& shape);

// columns[a] (plan::EchoSizes::columns) of each assignment a to experts[a]; -1 of -1. It is row number
// rows[a] + offsets[experts[a]] among those of its rank for the expert.
struct EchoColumnsShape {
  plan::EchoSizes sizes;
  int64_t assignments = 0;
};
struct EchoColumnsPlace {
  const int64_t *experts, *rows, *offsets;  // [assignments], [assignments], [experts]
  const int32_t *first, *next;              // of a plan, as are the ends
  const int64_t* ends;
  int64_t* columns;  // [assignments]
};
constexpr int64_t echo_column(const EchoColumnsPlace& place, const plan::EchoSizes& sizes, int64_t assignment) {
  const auto expert = static_cast<int32_t>(place.experts[assignment]);
  if (expert < 0) return -1;
  const int64_t row = place.rows[assignment] + place.offsets[expert];
  int32_t clone = place.first[expert];
  while (clone >= 0 && row >= place.ends[clone]) clone = place.next[clone];
  return clone < 0 ? sizes.column_of_expert(expert) : sizes.column_of_clone(clone);
}
void echo_columns(const EchoColumnsPlace& place, const EchoColumnsShape& shape);

// The same on a GPU, enqueued on `stream`; all pointers are of the device. base::Error("cuda", ...) when nothing was
// launched.
void echo_plan_cuda(const int64_t* counts, const EchoPlanPlace& place, const EchoPlanShape& shape,
                    CUstream_st* stream);
void echo_columns_cuda(const EchoColumnsPlace& place, const EchoColumnsShape& shape, CUstream_st* stream);

}  // namespace metroplex::cuda::kernels

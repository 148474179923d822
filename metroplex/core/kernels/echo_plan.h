// The plan of expert replicas (plan/echo.h), computed on the device that holds the counts: the expert of each
// replica slot, and the destination slot of each row of this rank. Array sizes do not depend on the counts.
#pragma once

#include <cstdint>

#include "plan/echo.h"

struct CUstream_st;

namespace metroplex::kernels {

struct EchoPlanShape {
  plan::EchoSizes sizes;
  plan::EchoOptions options;  // on a GPU: capfill or exact, split local_first
  int rank = 0;               // the source rank of `ends`
};

// Output of a plan. The replicas of an expert form a list: first[e], then next[replica], ..., -1.
struct EchoPlanPlace {
  int32_t *owner, *first, *next;  // [replicas], [experts], [replicas]
  // [replicas]: end of the range of `rank`'s rows for the owner that goes to this replica. The range starts at the
  // end of the previous replica in the list. Rows after the last range stay with the owner.
  int64_t* ends;
  int64_t *source_rows, *final_loads;  // [ranks][replicas], [ranks]: as in EchoPlan
  int64_t* scratch;                    // [echo_plan_scratch(sizes)]
  int32_t* narrow_scratch;             // [echo_plan_narrow_scratch(sizes)]
};
constexpr int64_t echo_plan_scratch(const plan::EchoSizes& sizes) {
  const int64_t replicas = sizes.replicas(), experts = sizes.experts, ranks = sizes.ranks;
  return experts + 4 * ranks + replicas + 3 * (replicas + experts + ranks);
}
constexpr int64_t echo_plan_narrow_scratch(const plan::EchoSizes& sizes) {
  return sizes.ranks + 3 * (sizes.replicas() + 2 * int64_t{sizes.ranks});
}

// counts [ranks, experts]: rows of each source rank for each expert.
void echo_plan(const int64_t* counts, const EchoPlanPlace& place, const EchoPlanShape& shape);

// columns[a] is the destination slot (plan::EchoSizes::columns) of assignment a to experts[a]; -1 for expert -1. Its
// row number among the rank's rows for the expert is rows[a] + offsets[experts[a]].
struct EchoColumnsShape {
  plan::EchoSizes sizes;
  int64_t assignments = 0;
};
struct EchoColumnsPlace {
  const int64_t *experts, *rows, *offsets;  // [assignments], [assignments], [experts]
  const int32_t *first, *next;              // from a plan, like `ends`
  const int64_t* ends;
  int64_t* columns;  // [assignments]
};
constexpr int64_t echo_column(const EchoColumnsPlace& place, const plan::EchoSizes& sizes, int64_t assignment) {
  const auto expert = static_cast<int32_t>(place.experts[assignment]);
  if (expert < 0) return -1;
  const int64_t row = place.rows[assignment] + place.offsets[expert];
  int32_t replica = place.first[expert];
  while (replica >= 0 && row >= place.ends[replica]) replica = place.next[replica];
  return replica < 0 ? sizes.column_of_expert(expert) : sizes.column_of_replica(replica);
}
void echo_columns(const EchoColumnsPlace& place, const EchoColumnsShape& shape);

// GPU versions, enqueued on `stream`; all pointers are device pointers. They throw base::Error("cuda", ...) if the
// launch fails.
void echo_plan_cuda(const int64_t* counts, const EchoPlanPlace& place, const EchoPlanShape& shape,
                    CUstream_st* stream);
void echo_columns_cuda(const EchoColumnsPlace& place, const EchoColumnsShape& shape, CUstream_st* stream);

}  // namespace metroplex::kernels

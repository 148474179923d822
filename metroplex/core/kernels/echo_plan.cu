#include "kernels/launch.h"
#include "kernels/echo_plan.h"
#include "plan/echo_warp.h"

namespace metroplex::kernels {
namespace {

template <class T>
struct Scratch {
  T* next;
  __device__ T* take(int64_t n) {
    T* const here = next;
    next += n;
    return here;
  }
};

__device__ plan::EchoLaneMemory lane_memory(const int64_t* counts, const EchoPlanPlace& place,
                                            const EchoPlanShape& shape) {
  const int64_t experts = shape.sizes.experts, ranks = shape.sizes.ranks, replicas = shape.sizes.replicas();
  Scratch<int64_t> wide{place.scratch};
  Scratch<int32_t> narrow{place.narrow_scratch};
  plan::EchoLaneMemory m{};
  m.counts = counts;
  m.expert_rows = wide.take(experts);
  m.loads = wide.take(ranks), m.caps = wide.take(ranks);
  m.column = wide.take(ranks), m.remainder = wide.take(ranks);
  m.rows = wide.take(replicas);
  for (plan::EchoLaneFill& fill : m.fills)
    fill.rows = wide.take(replicas), fill.left = wide.take(experts), fill.room = wide.take(ranks);
  m.order = narrow.take(ranks);
  for (plan::EchoLaneFill& fill : m.fills)
    fill.owner = narrow.take(replicas), fill.used = narrow.take(ranks), fill.hot = narrow.take(ranks);
  m.owner = place.owner, m.source_rows = place.source_rows, m.final_loads = place.final_loads;
  return m;
}

// Runs in one warp.
__global__ void echo_plan_kernel(const int64_t* counts, EchoPlanPlace place, EchoPlanShape s) {
  const plan::EchoWarp lanes;
  const plan::EchoLaneShape shape{s.sizes.ranks,    s.sizes.experts,
                                  s.sizes.slots,    s.options.ranks_per_node,
                                  s.options.eps_bp, s.options.planner == config::EchoPlanner::exact};
  const int32_t replicas = s.sizes.replicas();
  plan::EchoLaneProgram<plan::EchoWarp>(lanes, shape, lane_memory(counts, place, s)).plan();
  const int64_t* const of_rank = place.source_rows + int64_t{s.rank} * replicas;
  lanes.each(replicas, [&](int32_t replica) {
    place.next[replica] = -1;
    place.ends[replica] = 0;
  });
  lanes.each(s.sizes.experts, [&](int32_t expert) {
    int64_t end = 0;
    int32_t last = place.first[expert] = -1;
    for (int32_t replica = 0; replica < replicas; ++replica) {
      if (place.owner[replica] != expert) continue;
      (last < 0 ? place.first[expert] : place.next[last]) = replica;
      place.ends[replica] = end += of_rank[replica];
      last = replica;
    }
  });
}

__global__ void __launch_bounds__(kThreads) echo_columns_kernel(EchoColumnsPlace place, EchoColumnsShape shape) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t a = int64_t{blockIdx.x} * kThreads + threadIdx.x; a < shape.assignments; a += stride) {
    place.columns[a] = echo_column(place, shape.sizes, a);
  }
}

}  // namespace

void echo_plan_cuda(const int64_t* counts, const EchoPlanPlace& place, const EchoPlanShape& shape,
                    CUstream_st* stream) {
  launch_kernel("echo_plan", echo_plan_kernel, Grid{1, 32, 0, stream}, counts, place, shape);
}

void echo_columns_cuda(const EchoColumnsPlace& place, const EchoColumnsShape& shape, CUstream_st* stream) {
  if (shape.assignments == 0) return;
  launch_kernel("echo_columns", echo_columns_kernel, Grid{blocks_for(shape.assignments), kThreads, 0, stream}, place,
                shape);
}

}  // namespace metroplex::kernels

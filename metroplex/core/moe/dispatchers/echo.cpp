// ECHO: hot experts get replicas in free slots of ranks with few rows. All ranks compute the same plan on the device,
// from the counts of all ranks (plan/echo.h). The wrapped dispatcher sends the rows, indexed by destination slot
// instead of expert. Shapes: p ep ranks, E experts, C = p * slots replica slots.
#include "moe/dispatcher.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include "base/error.h"
#include "comm/collectives.h"
#include "kernels/echo_plan.h"

namespace metroplex::moe {
namespace {

template <class T>
T* typed_data(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

struct DevicePlan {
  at::Tensor owner, first, next, ends, source_rows, final_loads;  // see EchoPlanPlace
};

class EchoDispatcher final : public Dispatcher {
 public:
  EchoDispatcher(DispatcherSpec spec, std::unique_ptr<Dispatcher> rows)
      : Dispatcher(std::move(spec)), rows_(std::move(rows)) {
    const config::Model& m = spec_.model;
    shape_.sizes = {spec_.experts.ep, static_cast<int>(m.num_moe_experts), spec_.experts.slots};
    shape_.options.planner = m.moe_echo_planner;
    shape_.options.split = config::echo_split(m);
    shape_.options.eps_bp = config::echo_eps_basis_points(m);
    shape_.options.reclaim = m.moe_echo_reclaim;
    shape_.options.random = m.moe_echo_enable_random_offloading;
    shape_.options.seed = static_cast<uint64_t>(spec_.layer);
    // If a node boundary splits the etp shards of an expert, the planner gets no node preference.
    const int of_node = spec_.experts.node.size();
    shape_.options.ranks_per_node = of_node % spec_.experts.etp == 0 ? of_node / spec_.experts.etp : 0;
    shape_.rank = spec_.experts.ep_rank();
    MPX_CHECK(!spec_.target.gpu() || config::echo_plans_on_device(m), "config",
              "model.moe_echo_planner = ", m.moe_echo_planner,
              m.moe_echo_enable_random_offloading ? " with moe_echo_enable_random_offloading" : "",
              " runs on the CPU only, and this rank is on a GPU; use capfill or exact without random offloading");
  }

  void collect_step_counts(std::vector<at::Tensor>& counts) const override { rows_->collect_step_counts(counts); }

  DispatchPlan plan(const at::Tensor& experts) const override {
    const at::NoGradGuard no_grad;
    const Permutation sorted =
        permutation(spec_.target, experts, {.num_experts = spec_.model.num_moe_experts, .num_rows = experts.numel()});
    const at::Tensor all = comm::all_gather(sorted.counts.view({1, -1}), 0, spec_.experts.experts)
                               .view({spec_.experts.ep, spec_.experts.etp, -1});
    const at::Tensor counts = all.sum(1);
    const DevicePlan replicas = plan_replicas(counts);
    // etp ranks of one ep rank form one source rank, so a row's index includes the rows of lower etp ranks.
    const at::Tensor before = all.select(0, spec_.experts.ep_rank()).narrow(0, 0, spec_.experts.etp_rank()).sum(0);
    const at::Tensor begins = sorted.counts.cumsum(0).sub_(sorted.counts);
    DispatchPlan plan = rows_->plan(columns(experts, sorted.rows, before.sub(begins), replicas));
    const at::Tensor without = counts.sum(0).view({spec_.experts.ep, -1}).sum(1);
    plan.replicas = {replicas.owner, counts, replicas.source_rows, at::stack({without, replicas.final_loads})};
    return plan;
  }

  // Starts the weights first, because their transfer takes longest.
  DispatchUnderWay start_dispatch(const at::Tensor& x, const at::Tensor& probs, DispatchPlan plan) const override {
    ClonesUnderWay replicas(spec_.home->home(), plan.replicas.owners, spec_.experts.slots, spec_.experts.replicas);
    DispatchUnderWay way = rows_->start_dispatch(x, probs, std::move(plan));
    way.replicas = std::move(replicas);
    return way;
  }

  Dispatched finish_dispatch(DispatchUnderWay way) const override {
    ClonesUnderWay replicas = std::move(way.replicas);
    Dispatched out = rows_->finish_dispatch(std::move(way));
    out.replicas = std::move(replicas);
    return out;
  }

  at::Tensor combine(const at::Tensor& y, const CombinePlan& back) const override { return rows_->combine(y, back); }

 private:
  // counts [p, E].
  DevicePlan plan_replicas(const at::Tensor& counts) const {
    const int64_t replicas = shape_.sizes.replicas(), experts = shape_.sizes.experts, ranks = shape_.sizes.ranks;
    const at::TensorOptions wide = counts.options(), narrow = wide.dtype(at::kInt);
    const DevicePlan plan{at::empty({replicas}, narrow),      at::empty({experts}, narrow),
                          at::empty({replicas}, narrow),      at::empty({replicas}, wide),
                          at::empty({ranks, replicas}, wide), at::empty({ranks}, wide)};
    const at::Tensor scratch = at::empty({kernels::echo_plan_scratch(shape_.sizes)}, wide),
                     narrow_scratch = at::empty({kernels::echo_plan_narrow_scratch(shape_.sizes)}, narrow);
    const kernels::EchoPlanPlace place{typed_data<int32_t>(plan.owner),       typed_data<int32_t>(plan.first),
                                       typed_data<int32_t>(plan.next),        typed_data<int64_t>(plan.ends),
                                       typed_data<int64_t>(plan.source_rows), typed_data<int64_t>(plan.final_loads),
                                       typed_data<int64_t>(scratch),          typed_data<int32_t>(narrow_scratch)};
    device::launch(spec_.target,
                   {"echo_plan",
                    {&counts},
                    {&plan.owner, &plan.first, &plan.next, &plan.ends, &plan.source_rows, &plan.final_loads, &scratch,
                     &narrow_scratch},
                    {},
                    0,
                    {&scratch, &narrow_scratch}},
                   kernels::echo_plan, kernels::echo_plan_cuda, static_cast<const int64_t*>(counts.const_data_ptr()),
                   place, shape_);
    return plan;
  }

  // Maps experts [T, k] to destination slots [T, k]; rows [T, k] are positions in expert order.
  at::Tensor columns(const at::Tensor& experts, const at::Tensor& rows, const at::Tensor& offsets,
                     const DevicePlan& replicas) const {
    const at::Tensor chosen = experts.contiguous(), out = at::empty_like(chosen);
    const kernels::EchoColumnsPlace place{typed_data<int64_t>(chosen),
                                          typed_data<int64_t>(rows),
                                          typed_data<int64_t>(offsets),
                                          typed_data<int32_t>(replicas.first),
                                          typed_data<int32_t>(replicas.next),
                                          typed_data<int64_t>(replicas.ends),
                                          typed_data<int64_t>(out)};
    device::launch(
        spec_.target,
        {"echo_columns", {&chosen, &rows, &offsets, &replicas.first, &replicas.next, &replicas.ends}, {&out}},
        kernels::echo_columns, kernels::echo_columns_cuda, place,
        kernels::EchoColumnsShape{shape_.sizes, chosen.numel()});
    return out;
  }

  std::unique_ptr<Dispatcher> rows_;
  kernels::EchoPlanShape shape_;
};

}  // namespace

std::unique_ptr<Dispatcher> make_echo(DispatcherSpec spec, std::unique_ptr<Dispatcher> rows) {
  return std::make_unique<EchoDispatcher>(std::move(spec), std::move(rows));
}

}  // namespace metroplex::moe

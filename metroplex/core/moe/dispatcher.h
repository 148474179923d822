// Dispatchers send tokens to the ranks of their experts and return the results. A dispatcher is a file in
// dispatchers/ and a row of the table in dispatcher.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/experts.h"
#include "config/model.h"
#include "device/launch_point.h"
#include "moe/replicas.h"
#include "moe/context.h"
#include "moe/exchange.h"
#include "moe/experts.h"
#include "moe/permutation.h"
#include "moe/row_codes.h"

namespace metroplex::moe {

struct DispatcherSpec {
  ExpertContext experts;
  device::Target target;
  config::Model model;
  Experts* home = nullptr;  // the local experts, whose weights are replicated; outlives the dispatcher
  int64_t layer = 0;        // global layer number

  int64_t columns() const { return experts.columns(model.num_moe_experts); }
  int64_t local_groups() const { return experts.local_groups(model.num_moe_experts); }
  int64_t topk() const { return model.moe_router_topk; }
  bool pads_to_capacity() const { return config::pads_to_capacity(model); }
  RowFormats dispatch_formats() const { return {target, model.moe_dispatch_fwd_dtype}; }
  RowFormats combine_formats() const { return {target, config::RowDtype::params, model.moe_combine_bwd_dtype}; }
  // Maximum rows of a destination slot from the `tokens` tokens of one rank; 0: no limit.
  int64_t capacity(int64_t tokens) const;
};

// Destinations of all assignments: integer tensors on the device, computed before any row is sent.
struct DispatchPlan {
  Permutation permutation;    // from tokens to rows sorted by rank and expert
  at::Tensor rank_counts;     // [ranks, columns] int64: rows that each rank sends, if rows are exchanged
  ReplicaPlan replicas = {};  // with replicas; only `owners` is passed between segments
  // [T, k] bool: assignments that a static buffer drops. Undefined unless model.moe_overflow_policy is drop.
  at::Tensor lost = {};
};

struct DispatchUnderWay {
  DispatchPlan plan;
  at::Tensor x, probs;                                   // rows that stay on this rank
  RowsUnderWay rows, rows_probs;                         // rows in flight
  RowTable table = {};                                   // rows between each pair of ranks
  CountedRowsUnderWay counted = {}, counted_probs = {};  // for the static_buffer dispatcher
  ClonesUnderWay replicas = {};
};

// State of a dispatch for combine().
struct CombinePlan {
  Permutation permutation;          // without counts, like `regroup`
  Permutation regroup;              // from rows by source rank to rows sorted by expert, if rows are exchanged
  RowTable table = {};              // rows between each pair of ranks; on the host only, not passed between segments
  at::Tensor sent = {}, came = {};  // static_buffer dispatcher: CountedExchange of the dispatch
};

struct Dispatched {
  ExpertRows rows;
  CombinePlan back;
  ClonesUnderWay replicas = {};  // undefined without replica slots
};

// plan(), start_dispatch(), finish_dispatch() and combine() are collective over the experts' ranks, in this order.
class Dispatcher {
 public:
  explicit Dispatcher(DispatcherSpec spec) : spec_(std::move(spec)) {}
  virtual ~Dispatcher() = default;
  // Returns whether start_dispatch() reads device data on the host. It does so once, as late as possible.
  bool needs_host() const { return config::dispatcher_reads_counts(spec_.model, spec_.experts.experts.size()); }

  // experts [T, k] int64 of this rank's tokens; -1: dropped. With replica slots, the dispatchers in dispatchers/ take
  // destination slots (ExpertContext) instead of experts. EchoDispatcher decides which rows go to a replica.
  virtual DispatchPlan plan(const at::Tensor& experts) const = 0;
  // x [T, h], probs [T, k]. The caller may run the shared experts between start_dispatch() and finish_dispatch().
  virtual DispatchUnderWay start_dispatch(const at::Tensor& x, const at::Tensor& probs, DispatchPlan plan) const = 0;
  // Returns rows for the local experts; differentiable in x and probs.
  virtual Dispatched finish_dispatch(DispatchUnderWay under_way) const = 0;
  // Maps y [R, h] of the local experts to [T, h]: each token's sum of the results of its experts on all ranks.
  virtual at::Tensor combine(const at::Tensor& y, const CombinePlan& back) const = 0;
  // See nn::Segment::collect_step_counts.
  virtual void collect_step_counts(std::vector<at::Tensor>&) const {}

 protected:
  DispatcherSpec spec_;
};

// Creates the model's dispatcher; with model.moe_enable_echo it sends rows to replicas.
std::unique_ptr<Dispatcher> make_dispatcher(DispatcherSpec spec);
// Creates a dispatcher of `type`, which overrides the model's and must not be auto. Without replicas.
std::unique_ptr<Dispatcher> make_dispatcher(config::TokenDispatcher type, DispatcherSpec spec);

// Creates a dispatcher that exchanges rows: rows are sorted by rank and expert, sent, and regrouped by expert.
// `how` must outlive the result.
std::unique_ptr<Dispatcher> make_exchanging(DispatcherSpec spec, const RowExchange& how);

}  // namespace metroplex::moe

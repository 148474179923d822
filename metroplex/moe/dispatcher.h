// How tokens reach the ranks of their experts and how the results come back. A dispatcher is a file of dispatchers/
// and a line of the table in dispatcher.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/experts.h"
#include "config/model.h"
#include "cuda/launch_point.h"
#include "moe/clones.h"
#include "moe/context.h"
#include "moe/exchange.h"
#include "moe/experts.h"
#include "moe/permutation.h"

namespace metroplex::moe {

struct DispatcherSpec {
  ExpertContext experts;
  cuda::Target target;
  config::Model model;
  Experts* home = nullptr;  // whose weights are cloned; outlives the dispatcher
  int64_t layer = 0;        // its number in the model

  int64_t columns() const { return experts.columns(model.num_moe_experts); }
  int64_t local_groups() const { return experts.local_groups(model.num_moe_experts); }
  int64_t topk() const { return model.moe_router_topk; }
  bool pads_to_capacity() const { return config::pads_to_capacity(model); }
  // Rows that a column takes at most of the `tokens` tokens of one rank; 0: no limit.
  int64_t capacity(int64_t tokens) const;
};

// Where every assignment goes: integers of the device, known before a row moves.
struct DispatchPlan {
  Permutation permutation;  // of tokens to rows sorted by rank and expert
  at::Tensor rank_counts;   // [ranks, columns] int64: rows that each rank sends, where rows are exchanged
  ClonePlan clones = {};    // with clones; of these only the owners are a value of a layer
  // [T, k] bool: assignments that a static buffer drops. Undefined unless model.moe_overflow_policy is drop.
  at::Tensor lost = {};
};

// Rows on their way to the ranks of their experts.
struct DispatchUnderWay {
  DispatchPlan plan;
  at::Tensor x, probs;                                   // those that travel no further
  RowsUnderWay rows, rows_probs;                         // those that do
  RowTable table = {};                                   // who sends how many to whom
  CountedRowsUnderWay counted = {}, counted_probs = {};  // of the dispatcher static_buffer
  ClonesUnderWay clones = {};
};

// What combine() needs of a dispatch.
struct CombinePlan {
  Permutation permutation;          // without counts, and so is the next
  Permutation regroup;              // of rows from several ranks to rows sorted by expert, where rows are exchanged
  RowTable table = {};              // who sends how many to whom. Known to the host alone, and no value of a layer
  at::Tensor sent = {}, came = {};  // of the dispatcher static_buffer: CountedExchange of the dispatch
};

struct Dispatched {
  ExpertRows rows;
  CombinePlan back;
  ClonesUnderWay clones = {};  // not defined without slots
};

// plan(), start_dispatch(), finish_dispatch() and combine(), in this order, are collective over the experts' ranks.
class Dispatcher {
 public:
  explicit Dispatcher(DispatcherSpec spec) : spec_(std::move(spec)) {}
  virtual ~Dispatcher() = default;
  // Whether start_dispatch() waits for numbers of the device: at one point, as late as it can.
  bool needs_host() const { return config::dispatcher_reads_counts(spec_.model, spec_.experts.experts.size()); }

  // experts [T, k] int64 of the tokens of this rank; -1: dropped. With slots the dispatchers of dispatchers/ are
  // asked for columns (ExpertContext) instead: which rows go to a clone is for the one that sends clones to say.
  virtual DispatchPlan plan(const at::Tensor& experts) const = 0;
  // x [T, h], probs [T, k]. What does not need the rows runs between the two: the shared experts.
  virtual DispatchUnderWay start_dispatch(const at::Tensor& x, const at::Tensor& probs, DispatchPlan plan) const = 0;
  // Rows for the local experts; differentiable in x and probs.
  virtual Dispatched finish_dispatch(DispatchUnderWay under_way) const = 0;
  // y [R, h], of the local experts -> [T, h]: the sum of what the chosen experts of all ranks made of each token.
  virtual at::Tensor combine(const at::Tensor& y, const CombinePlan& back) const = 0;
  // nn::Segment::collect_step_counts.
  virtual void collect_step_counts(std::vector<at::Tensor>&) const {}

 protected:
  DispatcherSpec spec_;
};

// The one of the model, which with model.moe_enable_echo sends clones.
std::unique_ptr<Dispatcher> make_dispatcher(DispatcherSpec spec);
// `type` is not auto, and takes the place of the model's. Without clones.
std::unique_ptr<Dispatcher> make_dispatcher(config::TokenDispatcher type, DispatcherSpec spec);

// What the dispatchers that exchange rows share: rows sorted by rank and expert, sent, and sorted by expert again.
// `how` outlives it.
std::unique_ptr<Dispatcher> make_exchanging(DispatcherSpec spec, const RowExchange& how);

}  // namespace metroplex::moe

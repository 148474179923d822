#include "moe/experts_layer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include <algorithm>
#include <utility>

#include "config/experts.h"
#include "moe/load_meter.h"
#include "moe/router.h"

namespace metroplex::moe {
namespace {

// Returns the meter for this forward's times, or null if it does not count.
LoadMeter::Layer* find_meter(const ExpertsLayer& layer, const nn::SegmentContext& context) {
  const bool counts = layer.context.meter && context.batch.training && !context.is_recompute;
  return counts ? &layer.context.meter->layer(layer.spec.layer) : nullptr;
}

nn::Values without(const nn::Values& in, std::initializer_list<std::string_view> names) {
  nn::Values out;
  for (const nn::Values::Entry& entry : in) {
    if (std::find(names.begin(), names.end(), entry.name) == names.end()) out.add(entry.name, entry.value);
  }
  return out;
}

class RouterSegment final : public nn::Segment {
 public:
  RouterSegment(std::shared_ptr<ExpertsLayer> layer, const config::Model& model, const nn::LayerContext& context)
      : layer_(std::move(layer)),
        name_(layer_->spec.name + ".router"),
        saving_(context.saving),
        norm_(layer_->spec.norm, context),
        router_(name_, layer_->spec.layer, model, context, layer_->context) {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    const nn::ResidualAndNorm x = nn::residual_and_norm(in.at(nn::kHiddenStates), norm_, saving_, context.batch);
    const Routing routing = router_.forward(x.normed, context);
    nn::Values out(nn::kHiddenStates, x.h);
    out.add(kInput, x.normed).add(kTopExperts, routing.experts).add(kTopProbs, routing.probs);
    return out;
  }

  void collect_params(std::vector<nn::Param*>& params) override {
    norm_.collect_params(params);
    router_.collect_params(params);
  }
  void collect_buffers(std::vector<nn::Buffer*>& buffers) override { router_.collect_buffers(buffers); }
  void collect_step_counts(std::vector<at::Tensor>& counts) override { router_.collect_step_counts(counts); }
  nn::SegmentTraits traits() const override { return {.module = config::CudaGraphModule::moe_router}; }

 private:
  std::shared_ptr<ExpertsLayer> layer_;
  std::string name_;
  nn::SavePolicy saving_;
  nn::Norm norm_;
  Router router_;
};

// The shared expert, or only its first step if the second step overlaps with the exchange of rows.
class SharedExpertSegment final : public nn::Segment {
 public:
  SharedExpertSegment(std::shared_ptr<ExpertsLayer> layer, const config::Model& model)
      : layer_(std::move(layer)),
        name_(layer_->spec.name + ".shared_experts"),
        overlaps_(model.moe_shared_expert_overlap) {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    nn::Values out = in;
    if (!overlaps_) return out.add(kSharedOutput, layer_->shared->forward(in.at(kInput).input(), context.batch));
    const SharedExperts::Begun begun = layer_->shared->begin(in.at(kInput).input(), context.batch);
    out.add(kSharedProduct, begun.product);
    if (begun.score.defined()) out.add(kSharedScore, begun.score);
    return out;
  }

  void collect_params(std::vector<nn::Param*>& params) override {
    if (overlaps_) layer_->shared->collect_begin_params(params);
    else layer_->shared->collect_params(params);
  }
  nn::SegmentTraits traits() const override { return {.module = config::CudaGraphModule::moe_router}; }

 private:
  std::shared_ptr<ExpertsLayer> layer_;
  std::string name_;
  bool overlaps_;
};

// Computes the destination of each row, as integer tensors on the device; moves no rows.
class PlanSegment final : public nn::Segment {
 public:
  explicit PlanSegment(std::shared_ptr<ExpertsLayer> layer)
      : layer_(std::move(layer)), name_(layer_->spec.name + ".dispatch_plan") {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    LoadMeter::Layer* const meter = find_meter(*layer_, context);
    nn::Values out = without(in, {kTopExperts});
    DispatchPlan plan;
    timed(layer_->target, meter != nullptr ? &meter->dispatch_ms : nullptr,
          [&] { plan = layer_->dispatcher->plan(in.tensor(kTopExperts)); });
    if (plan.replicas.owners.defined() && context.batch.training && !context.is_recompute) {
      if (meter != nullptr) layer_->context.meter->count_replicas(layer_->spec.layer, plan.replicas);
      const bool repeats = layer_->context.buffers && layer_->context.buffers->repeats;
      if (layer_->context.on_replica_plan && !repeats)
        layer_->context.on_replica_plan(layer_->spec.layer, plan.replicas);
    }
    if (meter != nullptr && plan.lost.defined())
      layer_->context.meter->count_lost(layer_->spec.layer, in.tensor(kTopExperts), plan.lost);
    add_plan(out, plan);
    return out;
  }

  void collect_params(std::vector<nn::Param*>&) override {}
  void collect_step_counts(std::vector<at::Tensor>& counts) override {
    layer_->dispatcher->collect_step_counts(counts);
    if (layer_->context.meter && layer_->context.slots > 0)
      counts.push_back(layer_->context.meter->replicas_of(layer_->spec.layer));
  }
  nn::SegmentTraits traits() const override { return {.module = config::CudaGraphModule::moe_preprocess}; }

 private:
  std::shared_ptr<ExpertsLayer> layer_;
  std::string name_;
};

// The shared expert runs here unless a graph contains it: before rows are sent, or while they are exchanged. If
// weights are replicated, this is a second use of the experts' weights. That use counts at the end of its backward,
// because replica gradients may be in flight until then.
class DispatchSegment final : public nn::Segment {
 public:
  DispatchSegment(std::shared_ptr<ExpertsLayer> layer, const config::Model& model)
      : layer_(std::move(layer)),
        name_(layer_->spec.name + ".dispatch"),
        overlaps_(model.moe_shared_expert_overlap),
        replicas_overlap_(model.moe_echo_expert_dispatch_overlap) {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    LoadMeter::Layer* const meter = find_meter(*layer_, context);
    double* const ms = meter != nullptr ? &meter->dispatch_ms : nullptr;
    const at::Tensor& x_sbh = in.tensor(kInput);
    const at::Tensor owners = in.has(kReplicaOwners) ? in.tensor(kReplicaOwners) : at::Tensor();
    nn::Values out = without_dispatch_plan(without(in, {kInput, kTopProbs, kSharedProduct, kSharedScore}));
    const bool runs_shared = layer_->shared && !in.has(kSharedOutput);
    at::Tensor shared;
    if (runs_shared && !overlaps_) shared = layer_->shared->forward(in.at(kInput).input(), context.batch);
    DispatchUnderWay under_way;
    timed(layer_->target, ms, [&] {
      under_way = layer_->dispatcher->start_dispatch(x_sbh.reshape({-1, x_sbh.size(-1)}), in.tensor(kTopProbs),
                                                     dispatch_plan_in(in, layer_->topk));
    });
    if (runs_shared && overlaps_) shared = overlapped_shared(in, context.batch);
    Dispatched dispatched;
    timed(layer_->target, ms, [&] { dispatched = layer_->dispatcher->finish_dispatch(std::move(under_way)); });
    if (dispatched.replicas.defined()) {
      add_replicas(out, dispatched.replicas.weights());
      out.add(kReplicaOwners, owners);
      if (meter != nullptr) dispatched.replicas.count_time(layer_->target, &meter->replicas_ms);
      leave_under_way(std::move(dispatched.replicas), context);
    }
    add_plan(out, dispatched.back);
    if (dispatched.back.table.members() > 0) layer_->tables.insert_or_assign(&context.batch, dispatched.back.table);
    const ExpertRows& rows = dispatched.rows;
    out.add(kRows, rows.x).add(kRowProbs, rows.probs).add(kRowCounts, rows.counts);
    if (shared.defined()) out.add(kSharedOutput, shared);
    return out;
  }

  void collect_params(std::vector<nn::Param*>& params) override {
    const bool captured = layer_->context.captures_shared_expert;
    if (layer_->shared && !captured) layer_->shared->collect_params(params);
    if (layer_->shared && captured && overlaps_) layer_->shared->collect_finish_params(params);
    if (layer_->context.slots > 0) layer_->experts.collect_params(params);
  }
  nn::SegmentTraits traits() const override {
    const bool waits = layer_->dispatcher->needs_host();
    return {.needs_host = waits, .static_shapes = !waits, .module = config::CudaGraphModule::moe};
  }

 private:
  at::Tensor overlapped_shared(const nn::Values& in, const nn::Microbatch& batch) const {
    if (!in.has(kSharedProduct)) return layer_->shared->forward(in.at(kInput).input(), batch);
    const at::Tensor score = in.has(kSharedScore) ? in.tensor(kSharedScore) : at::Tensor();
    return layer_->shared->finish({in.tensor(kSharedProduct), score}, batch);
  }

  // The experts segment joins them if it is in the same autograd region.
  void leave_under_way(ClonesUnderWay replicas, nn::SegmentContext& context) {
    if (!replicas_overlap_) return replicas.join();
    layer_->replicas.insert_or_assign(&context.batch, std::move(replicas));
    context.joins.emplace_back([layer = layer_.get(), batch = &context.batch] {
      if (auto open = layer->replicas.extract(batch)) open.mapped().join();
    });
  }

  std::shared_ptr<ExpertsLayer> layer_;
  std::string name_;
  bool overlaps_, replicas_overlap_;
};

class ExpertsSegment final : public nn::Segment {
 public:
  ExpertsSegment(std::shared_ptr<ExpertsLayer> layer, const config::Model& model)
      : layer_(std::move(layer)),
        name_(layer_->spec.name + ".experts"),
        replicas_overlap_(model.moe_echo_expert_dispatch_overlap),
        fetches_again_(model.moe_echo_recompute_expert_dispatch) {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    nn::Values out = without(in, {kRows, kRowProbs, kRowCounts, kReplicaOwners, kReplicaWeight1, kReplicaWeight2,
                                  kReplicaBias1, kReplicaBias2});
    auto under_way = layer_->replicas.extract(&context.batch);
    Replicas replicas = in.has(kReplicaOwners) ? replicas_of(in, context) : Replicas();
    if (under_way) replicas.under_way = &under_way.mapped();
    out.add(kRowOutput, layer_->experts.forward({in.tensor(kRows), in.tensor(kRowProbs), in.tensor(kRowCounts)},
                                                replicas, context.is_recompute));
    return out;
  }

  void collect_params(std::vector<nn::Param*>& params) override { layer_->experts.collect_params(params); }
  nn::SegmentTraits traits() const override {
    return {.needs_host = layer_->experts.needs_host(), .module = config::CudaGraphModule::moe};
  }

 private:
  Replicas replicas_of(const nn::Values& in, nn::SegmentContext& context) const {
    const at::Tensor owners = in.tensor(kReplicaOwners);
    const comm::Group& group = layer_->context.replicas;
    Replicas replicas{replicas_in(in)};
    replicas.bring_home = [owners, &group, overlaps = replicas_overlap_](nn::Param& home,
                                                                         const at::Tensor& gradients) {
      bring_home(home, gradients, owners, group);
      if (!overlaps) home.synchronize();
    };
    if (!fetches_again_ || !at::GradMode::is_enabled()) return replicas;
    replicas.again = std::make_shared<ReplicasAgain>(layer_->experts.home(), owners, layer_->context.slots, group);
    if (replicas_overlap_) context.starts.emplace_back([again = replicas.again] { again->start(); });
    return replicas;
  }

  std::shared_ptr<ExpertsLayer> layer_;
  std::string name_;
  bool replicas_overlap_, fetches_again_;
};

class CombineSegment final : public nn::Segment {
 public:
  CombineSegment(std::shared_ptr<ExpertsLayer> layer, const config::Model& model, const nn::LayerContext& context)
      : layer_(std::move(layer)),
        name_(layer_->spec.name + ".combine"),
        sp_(context.sp),
        dropout_{context.seed, layer_->spec.layer, nn::RandomSite::mlp_output, model.hidden_dropout, context.target} {
  }
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    const at::Tensor& residual = in.tensor(nn::kHiddenStates);
    LoadMeter::Layer* const meter = find_meter(*layer_, context);
    CombinePlan back = combine_plan_in(in, layer_->topk);
    if (const auto known = layer_->tables.extract(&context.batch)) back.table = known.mapped();
    at::Tensor out;
    timed(layer_->target, meter != nullptr ? &meter->combine_ms : nullptr,
          [&] { out = layer_->dispatcher->combine(in.tensor(kRowOutput), back); });
    out = out.view(residual.sizes());
    if (in.has(kSharedOutput)) out = at::add(out, in.tensor(kSharedOutput));
    const nn::SequenceOffset place = nn::sequence_offset(residual, sp_);
    return {nn::kHiddenStates, nn::PendingSum{out, residual, {dropout_, nullptr, place}}};
  }

  void collect_params(std::vector<nn::Param*>&) override {}
  nn::SegmentTraits traits() const override { return {.module = config::CudaGraphModule::moe}; }

 private:
  std::shared_ptr<ExpertsLayer> layer_;
  std::string name_;
  comm::Group sp_;
  nn::DropoutKey dropout_;
};

}  // namespace

ExpertsLayer::ExpertsLayer(ExpertsLayerSpec its_spec, const config::Model& model, const nn::LayerContext& its_context,
                           const ExpertContext& at)
    : spec(std::move(its_spec)),
      topk(model.moe_router_topk),
      target(its_context.target),
      context(at),
      experts(spec.name + ".experts", model, its_context, at),
      dispatcher(make_dispatcher({at, its_context.target, model, &experts, spec.layer})) {
  if (model.moe_shared_expert_intermediate_size > 0)
    shared.emplace(spec.name + ".shared_experts", model, its_context);
}

void add_expert_segments(nn::Block& block, const std::shared_ptr<ExpertsLayer>& layer, const config::Model& model,
                         const nn::LayerContext& context) {
  block.segments.push_back(std::make_unique<RouterSegment>(layer, model, context));
  if (layer->shared && layer->context.captures_shared_expert)
    block.segments.push_back(std::make_unique<SharedExpertSegment>(layer, model));
  block.segments.push_back(std::make_unique<PlanSegment>(layer));
  block.segments.push_back(std::make_unique<DispatchSegment>(layer, model));
  block.segments.push_back(std::make_unique<ExpertsSegment>(layer, model));
  block.segments.push_back(std::make_unique<CombineSegment>(layer, model, context));
}

}  // namespace metroplex::moe

#include "moe/experts_layer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>

#include <utility>

#include "config/experts.h"
#include "moe/load_meter.h"
#include "moe/router.h"
#include "nn/residual.h"

namespace metroplex::moe {
namespace {

// Returns the meter for this forward's times, or null if it does not count.
LoadMeter::Layer* find_meter(const ExpertsLayer& layer, const nn::SegmentContext& context) {
  const bool counts = layer.context.meter && context.batch.training && !context.is_recompute;
  return counts ? &layer.context.meter->layer(layer.spec.layer) : nullptr;
}

// The names of modules and adapters are those of Megatron and transformers.
nn::LinearSpec latent_spec(const std::string& layer, const char* word, int64_t in, int64_t out, bool bias) {
  nn::LinearSpec spec = nn::linear_spec(layer + "." + word, in, out, bias);
  spec.adapters = {config::whole_layer(word, out)};
  return spec;
}

at::Tensor project(std::optional<nn::Linear>& linear, const nn::Input& in, const nn::Microbatch& batch) {
  return linear ? linear->forward(in, batch) : in.x;
}

class RouterSegment final : public nn::Segment {
 public:
  RouterSegment(std::shared_ptr<ExpertsLayer> layer, const config::Model& model, const nn::LayerContext& context)
      : layer_(std::move(layer)),
        name_(layer_->spec.name + ".router"),
        saving_(context.saving),
        norm_(layer_->spec.norm, context),
        residual_(model, config::mlp_residual(model)),
        router_(name_, layer_->spec.layer, model, context, layer_->context) {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    nn::ResidualAndNorm x =
        residual_.connect(nn::residual_and_norm(in.at(nn::kHiddenStates), &norm_, saving_, context.batch));
    // One pass adds the router's gradient to that of the experts.
    const nn::ResidualAndNorm readers = nn::fork_sum(x.normed.x);
    const Routing routing = router_.forward({readers.h, x.normed.recomputed}, context);
    x.normed.x = readers.normed.x;
    return to_values({.residual = x.h, .input = x.normed, .routing = routing});
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
  nn::Residual residual_;
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
    LayerValues values = from_values(in, layer_->topk);
    const nn::Input input = values.input.input();
    if (overlaps_) values.shared_begun = layer_->shared->begin(input, context.batch);
    else values.shared_output = layer_->shared->forward(input, context.batch);
    return to_values(values);
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
    LayerValues values = from_values(in, layer_->topk);
    const at::Tensor experts = std::exchange(values.routing.experts, {});
    DispatchPlan& plan = values.plan;
    timed(layer_->target, meter != nullptr ? &meter->dispatch_ms : nullptr,
          [&] { plan = layer_->dispatcher->plan(experts); });
    if (plan.replicas.owners.defined() && context.batch.training && !context.is_recompute) {
      if (meter != nullptr) layer_->context.meter->count_replicas(layer_->spec.layer, plan.replicas);
      const bool repeats = layer_->context.buffers && layer_->context.buffers->repeats;
      if (layer_->context.on_replica_plan && !repeats)
        layer_->context.on_replica_plan(layer_->spec.layer, plan.replicas);
    }
    if (meter != nullptr && plan.lost.defined())
      layer_->context.meter->count_lost(layer_->spec.layer, experts, plan.lost);
    return to_values(values);
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
    const LayerValues values = from_values(in, layer_->topk);
    LayerValues out{.residual = values.residual, .shared_output = values.shared_output};
    out.state = std::make_shared<DispatchState>();
    const bool runs_shared = layer_->shared && !values.shared_output.defined();
    if (runs_shared && !overlaps_) out.shared_output = layer_->shared->forward(values.input.input(), context.batch);
    const at::Tensor x = project(layer_->to_latent, values.input.input(), context.batch);
    DispatchUnderWay under_way;
    timed(layer_->target, ms, [&] {
      under_way = layer_->dispatcher->start_dispatch(x.reshape({-1, x.size(-1)}), values.routing.probs, values.plan);
    });
    if (runs_shared && overlaps_) out.shared_output = finish_shared(values, context.batch);
    Dispatched dispatched;
    timed(layer_->target, ms, [&] { dispatched = layer_->dispatcher->finish_dispatch(std::move(under_way)); });
    if (dispatched.replicas.defined()) {
      out.replicas = dispatched.replicas.weights();
      out.plan.replicas.owners = values.plan.replicas.owners;
      if (meter != nullptr) dispatched.replicas.count_time(layer_->target, &meter->replicas_ms);
      out.state->replicas = std::move(dispatched.replicas);
      join_replicas(out.state, context);
    }
    out.back = dispatched.back;
    out.state->table = dispatched.back.table;
    out.rows = dispatched.rows;
    return to_values(out);
  }

  void collect_params(std::vector<nn::Param*>& params) override {
    const bool captured = layer_->context.captures_shared_expert;
    if (layer_->shared && !captured) layer_->shared->collect_params(params);
    if (layer_->shared && captured && overlaps_) layer_->shared->collect_finish_params(params);
    if (layer_->to_latent) layer_->to_latent->collect_params(params);
    if (layer_->context.slots > 0) layer_->experts.collect_params(params);
  }
  nn::SegmentTraits traits() const override {
    const bool waits = layer_->dispatcher->needs_host();
    return {.needs_host = waits, .static_shapes = !waits, .module = config::CudaGraphModule::moe};
  }

 private:
  at::Tensor finish_shared(const LayerValues& values, const nn::Microbatch& batch) const {
    if (values.shared_begun.product.defined()) return layer_->shared->finish(values.shared_begun, batch);
    return layer_->shared->forward(values.input.input(), batch);
  }

  // The experts segment joins the replica weights if it is in the same autograd region.
  void join_replicas(const std::shared_ptr<DispatchState>& state, nn::SegmentContext& context) const {
    const auto join = [state] { std::exchange(state->replicas, {}).join(); };
    if (replicas_overlap_) context.joins.emplace_back(join);
    else join();
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
    LayerValues values = from_values(in, layer_->topk);
    Replicas replicas;
    ClonesUnderWay under_way;
    if (values.replicas.defined()) replicas = make_replicas(values, context);
    if (values.state) under_way = std::exchange(values.state->replicas, {});
    if (under_way.defined()) replicas.under_way = &under_way;
    const at::Tensor& samples = context.batch.counters.samples;
    if (samples.defined()) values.rows.counter = samples.narrow(0, 0, 1);
    values.row_output = layer_->experts.forward(values.rows, replicas, context.is_recompute);
    values.rows = {};
    values.replicas = {};
    values.plan = {};
    return to_values(values);
  }

  void collect_params(std::vector<nn::Param*>& params) override { layer_->experts.collect_params(params); }
  nn::SegmentTraits traits() const override {
    return {.needs_host = layer_->experts.needs_host(), .module = config::CudaGraphModule::moe};
  }

 private:
  Replicas make_replicas(const LayerValues& values, nn::SegmentContext& context) const {
    const at::Tensor owners = values.plan.replicas.owners;
    const comm::Group& group = layer_->context.replicas;
    Replicas replicas{values.replicas};
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
        dropout_{context.seed, layer_->spec.layer, nn::RandomSite::mlp_output, model.hidden_dropout, context.target},
        residual_(model, config::mlp_residual(model)) {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    LoadMeter::Layer* const meter = find_meter(*layer_, context);
    const LayerValues values = from_values(in, layer_->topk);
    const at::Tensor& residual = values.residual.tensor();
    CombinePlan back = values.back;
    if (values.state) back.table = values.state->table;
    at::Tensor out;
    timed(layer_->target, meter != nullptr ? &meter->combine_ms : nullptr,
          [&] { out = layer_->dispatcher->combine(values.row_output, back); });
    out = project(layer_->from_latent, out.view({residual.size(0), residual.size(1), -1}), context.batch);
    if (values.shared_output.defined()) out = at::add(out, values.shared_output);
    const nn::SequenceOffset place = nn::sequence_offset(residual, sp_);
    return {nn::kHiddenStates, nn::PendingSum{residual_.scale(out), residual, {dropout_, nullptr, place}}};
  }

  void collect_params(std::vector<nn::Param*>& params) override {
    if (layer_->from_latent) layer_->from_latent->collect_params(params);
  }
  nn::SegmentTraits traits() const override { return {.module = config::CudaGraphModule::moe}; }

 private:
  std::shared_ptr<ExpertsLayer> layer_;
  std::string name_;
  comm::Group sp_;
  nn::DropoutKey dropout_;
  nn::Residual residual_;
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
  const int64_t latent = model.moe_latent_size, hidden = model.hidden_size;
  if (latent == 0) return;
  to_latent.emplace(latent_spec(spec.name, "fc1_latent_proj", hidden, latent, model.mlp_bias()),
                    nn::LinearSplit::none, its_context);
  nn::LinearSpec back = latent_spec(spec.name, "fc2_latent_proj", latent, hidden, model.mlp_bias());
  back.init = nn::Init::scaled_normal;
  from_latent.emplace(back, nn::LinearSplit::none, its_context);
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

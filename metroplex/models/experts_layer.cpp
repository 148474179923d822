#include "models/experts_layer.h"

#include <ATen/ops/add.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "config/experts.h"
#include "moe/dispatch_values.h"
#include "moe/dispatcher.h"
#include "moe/load_meter.h"
#include "moe/router.h"
#include "moe/shared_experts.h"
#include "moe/values.h"

namespace metroplex::models {
namespace {

// Adds the time until its end to `sum`, which may be null.
class Stopwatch {
 public:
  explicit Stopwatch(double* sum) : sum_(sum) {}
  ~Stopwatch() {
    if (sum_ != nullptr) *sum_ += std::chrono::duration<double, std::milli>(Clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double* sum_;
  Clock::time_point start_ = Clock::now();
};

// What the segments of one layer share.
struct ExpertsLayer {
  ExpertsLayer(const LayerSpec& spec, const config::Model& model, const nn::LayerContext& context,
               const moe::ExpertContext& expert_context)
      : number(spec.layer),
        name(spec.name + ".mlp"),
        topk(model.moe_router_topk),
        experts(expert_context),
        dispatcher(moe::make_dispatcher(config::token_dispatcher(model, experts.experts.size()),
                                        {experts, context.target, model})) {
    if (model.moe_shared_expert_intermediate_size > 0) shared.emplace(name + ".shared_experts", model, context);
  }

  // Where this forward adds its times; null where it does not count.
  moe::LoadMeter::Layer* meter(const nn::SegmentContext& context) const {
    return experts.meter && context.batch.training && !context.is_recompute ? &experts.meter->layer(number) : nullptr;
  }

  int64_t number;
  std::string name;
  int64_t topk;
  moe::ExpertContext experts;
  std::unique_ptr<moe::Dispatcher> dispatcher;
  std::optional<moe::SharedExperts> shared;
};

// All but those that only the segment before wanted.
nn::Values without(const nn::Values& in, std::initializer_list<std::string_view> names) {
  nn::Values out;
  for (const nn::Values::Entry& entry : in) {
    if (std::find(names.begin(), names.end(), entry.name) == names.end()) out.add(entry.name, entry.value);
  }
  return out;
}

class RouterSegment final : public nn::Segment {
 public:
  RouterSegment(std::shared_ptr<ExpertsLayer> layer, const LayerSpec& spec, const config::Model& model,
                const nn::LayerContext& context)
      : layer_(std::move(layer)),
        name_(layer_->name + ".router"),
        saving_(context.saving),
        norm_(norm_spec(spec.name + ".pre_mlp_layernorm", model, context), context),
        router_(name_, spec.layer, model, context, layer_->experts) {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    const nn::ResidualAndNorm x = nn::residual_and_norm(in.at(nn::kHiddenStates), norm_, saving_, context.batch);
    const moe::Routing routing = router_.forward(x.normed, context);
    nn::Values out(nn::kHiddenStates, x.h);
    out.add(moe::kInput, x.normed).add(moe::kTopExperts, routing.experts).add(moe::kTopProbs, routing.probs);
    return out;
  }

  void collect_params(std::vector<nn::Param*>& params) override {
    norm_.collect_params(params);
    router_.collect_params(params);
  }
  void collect_buffers(std::vector<nn::Buffer*>& buffers) override { router_.collect_buffers(buffers); }
  nn::SegmentTraits traits() const override { return {.module = config::CudaGraphModule::moe_router}; }

 private:
  std::shared_ptr<ExpertsLayer> layer_;
  std::string name_;
  nn::SavePolicy saving_;
  nn::Norm norm_;
  moe::Router router_;
};

// Where rows go, without any of them: integers of the device.
class PlanSegment final : public nn::Segment {
 public:
  explicit PlanSegment(std::shared_ptr<ExpertsLayer> layer)
      : layer_(std::move(layer)), name_(layer_->name + ".dispatch_plan") {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    moe::LoadMeter::Layer* const meter = layer_->meter(context);
    const Stopwatch watch(meter != nullptr ? &meter->dispatch_ms : nullptr);
    nn::Values out = without(in, {moe::kTopExperts});
    moe::add_plan(out, layer_->dispatcher->plan(in.tensor(moe::kTopExperts)));
    return out;
  }

  void collect_params(std::vector<nn::Param*>&) override {}
  nn::SegmentTraits traits() const override { return {.module = config::CudaGraphModule::moe_preprocess}; }

 private:
  std::shared_ptr<ExpertsLayer> layer_;
  std::string name_;
};

// The shared experts work here: before rows are sent, or while they are on their way.
class DispatchSegment final : public nn::Segment {
 public:
  DispatchSegment(std::shared_ptr<ExpertsLayer> layer, const config::Model& model)
      : layer_(std::move(layer)), name_(layer_->name + ".dispatch"), overlaps_(model.moe_shared_expert_overlap) {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    moe::LoadMeter::Layer* const meter = layer_->meter(context);
    double* const ms = meter != nullptr ? &meter->dispatch_ms : nullptr;
    const at::Tensor& x_sbh = in.tensor(moe::kInput);
    nn::Values out = moe::without_dispatch_plan(without(in, {moe::kInput, moe::kTopProbs}));
    at::Tensor shared;
    if (layer_->shared && !overlaps_) shared = layer_->shared->forward(in.at(moe::kInput).input());
    moe::DispatchUnderWay under_way;
    {
      const Stopwatch watch(ms);
      under_way = layer_->dispatcher->start_dispatch(x_sbh.reshape({-1, x_sbh.size(-1)}), in.tensor(moe::kTopProbs),
                                                     moe::dispatch_plan_in(in, layer_->topk));
    }
    if (layer_->shared && overlaps_) shared = layer_->shared->forward(in.at(moe::kInput).input());
    const Stopwatch watch(ms);
    const moe::Dispatched dispatched = layer_->dispatcher->finish_dispatch(std::move(under_way));
    moe::add_plan(out, dispatched.back);
    const moe::ExpertRows& rows = dispatched.rows;
    out.add(moe::kRows, rows.x).add(moe::kRowProbs, rows.probs).add(moe::kRowCounts, rows.counts);
    if (shared.defined()) out.add(moe::kSharedOutput, shared);
    return out;
  }

  void collect_params(std::vector<nn::Param*>& params) override {
    if (layer_->shared) layer_->shared->collect_params(params);
  }
  nn::SegmentTraits traits() const override {
    const bool waits = layer_->dispatcher->needs_host();
    return {.needs_host = waits, .static_shapes = !waits, .module = config::CudaGraphModule::moe};
  }

 private:
  std::shared_ptr<ExpertsLayer> layer_;
  std::string name_;
  bool overlaps_;
};

class ExpertsSegment final : public nn::Segment {
 public:
  ExpertsSegment(std::shared_ptr<ExpertsLayer> layer, const config::Model& model, const nn::LayerContext& context)
      : name_(layer->name + ".experts"), experts_(name_, model, context, layer->experts) {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext&) override {
    nn::Values out = without(in, {moe::kRows, moe::kRowProbs, moe::kRowCounts});
    out.add(moe::kRowOutput,
            experts_.forward({in.tensor(moe::kRows), in.tensor(moe::kRowProbs), in.tensor(moe::kRowCounts)}));
    return out;
  }

  void collect_params(std::vector<nn::Param*>& params) override { experts_.collect_params(params); }
  nn::SegmentTraits traits() const override {
    return {.needs_host = experts_.needs_host(), .module = config::CudaGraphModule::moe};
  }

 private:
  std::string name_;
  moe::Experts experts_;
};

class CombineSegment final : public nn::Segment {
 public:
  CombineSegment(std::shared_ptr<ExpertsLayer> layer, const LayerSpec& spec, const config::Model& model,
                 const nn::LayerContext& context)
      : layer_(std::move(layer)),
        name_(layer_->name + ".combine"),
        sp_(context.sp),
        dropout_{context.seed, spec.layer, nn::RandomSite::mlp_output, model.hidden_dropout, context.target} {}
  const std::string& name() const override { return name_; }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    const at::Tensor& residual = in.tensor(nn::kHiddenStates);
    moe::LoadMeter::Layer* const meter = layer_->meter(context);
    at::Tensor out;
    {
      const Stopwatch watch(meter != nullptr ? &meter->combine_ms : nullptr);
      out = layer_->dispatcher->combine(in.tensor(moe::kRowOutput), moe::combine_plan_in(in, layer_->topk));
    }
    out = out.view(residual.sizes());
    if (in.has(moe::kSharedOutput)) out = at::add(out, in.tensor(moe::kSharedOutput));
    const nn::SequencePlace place = nn::sequence_place(residual, sp_);
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

bool has_experts(const config::Model& model, int64_t number) {
  // What comes behind the last layer (CodeGeeX's) is dense.
  return model.has_experts() && number < model.num_layers && config::moe_layers(model)[static_cast<size_t>(number)];
}

void add_expert_segments(nn::Block& block, const LayerSpec& spec, const config::Model& model,
                         const nn::LayerContext& context, const moe::ExpertContext& experts) {
  const auto layer = std::make_shared<ExpertsLayer>(spec, model, context, experts);
  block.segments.push_back(std::make_unique<RouterSegment>(layer, spec, model, context));
  block.segments.push_back(std::make_unique<PlanSegment>(layer));
  block.segments.push_back(std::make_unique<DispatchSegment>(layer, model));
  block.segments.push_back(std::make_unique<ExpertsSegment>(layer, model, context));
  block.segments.push_back(std::make_unique<CombineSegment>(layer, spec, model, context));
}

}  // namespace metroplex::models

#include "forecast/trace_step.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "comm/launch.h"
#include "config/derived.h"
#include "forecast/count_microbatches.h"
#include "forecast/trace_inputs.h"
#include "forecast/trace_recorder.h"
#include "graph/tape_recorder.h"
#include "nn/rounded_weight.h"
#include "pipeline/stage_graphs.h"
#include "step/step.h"

namespace metroplex::forecast {
namespace {

constexpr const char* kStepListener = "step trace";

replay::Position position(int microbatch, int count) {
  if (microbatch + 1 == count) return replay::Position::last;
  return microbatch == 0 ? replay::Position::first : replay::Position::middle;
}

// Assigns the recorded operations of a stage to its autograd regions.
class RegionTracer final : public nn::StageObserver {
 public:
  RegionTracer(pipeline::Stage& stage, TraceRecorder& recorder) : stage_(stage), recorder_(recorder) {
    stage.add_observer(kStepListener, *this);
  }
  ~RegionTracer() override { stage_.remove_observer(kStepListener); }
  void before(const nn::RegionEvent& event) override {
    replay::IslandTrace region{event.block, event.segment, event.pass == nn::Pass::backward};
    for (const pipeline::StageRegions::Entry& entry : stage_.regions().entries)
      region.captured |= entry.block == event.block && entry.segment == event.segment && entry.graph >= 0;
    recorder_.begin_region(std::move(region));
  }
  void after(const nn::RegionEvent& /*event*/) override { recorder_.begin_region({}); }

 private:
  pipeline::Stage& stage_;
  TraceRecorder& recorder_;
};

// Assigns the recorded operations to the actions of the step.
class ActionTracer {
 public:
  ActionTracer(step::RankModel& model, TraceRecorder& recorder, int microbatches)
      : model_(model), recorder_(recorder), microbatches_(microbatches) {
    for (const auto& stage : model.stages) stages_.push_back(std::make_unique<RegionTracer>(*stage, recorder));
    model.executor->observers().add(kStepListener,
                                    [this](const plan::Action& action, double) { after_action(action); });
  }
  ~ActionTracer() { model_.executor->observers().remove(kStepListener); }

  std::vector<replay::TracedAction> actions;

 private:
  // Messages between stages are those of the pipeline table. Other operations outside compute actions, such as the
  // start of the step, are assigned to the next one.
  void after_action(const plan::Action& action) {
    std::vector<replay::IslandTrace> regions = recorder_.take();
    if (!plan::is_compute(action.kind)) {
      for (replay::IslandTrace& region : regions) {
        std::erase_if(region.operations, [](const replay::TraceOperation& one) { return one.group == "pp"; });
        if (!region.operations.empty()) early_.push_back(std::move(region));
      }
      return;
    }
    for (replay::IslandTrace& region : regions)
      std::erase_if(region.operations, [](const replay::TraceOperation& one) { return one.group == "pp"; });
    regions.insert(regions.begin(), std::make_move_iterator(early_.begin()), std::make_move_iterator(early_.end()));
    early_.clear();
    actions.push_back({action.kind, action.chunk, position(action.microbatch, microbatches_), std::move(regions)});
  }

  step::RankModel& model_;
  TraceRecorder& recorder_;
  int microbatches_;
  std::vector<std::unique_ptr<RegionTracer>> stages_;
  std::vector<replay::IslandTrace> early_;
};

// Forms the regions of graphs of modules, so that the trace marks them. They run eagerly here.
void form_captured_regions(const step::ProcessContext& process, step::RankModel& model, MetaGraphs& device) {
  const config::Train& train = process.config.train;
  if (!train.captures_parts()) return;
  const auto instances = std::make_shared<pipeline::GraphInstances>(device, process.world->device());
  for (const auto& stage : model.stages) stage->enable_capture(instances, pipeline::graph_scope(train));
}

}  // namespace

std::vector<distributed::FamilyKey> find_families(const RankRequest& request) {
  const topology::RankGrid grid(request.world_size, request.config.parallel);
  const comm::World world = comm::make_meta_world(request.rank, grid, request.device, nullptr);
  const auto assembly = step::assemble(request.config, world, request.vocab_size, false, request.build);
  std::vector<distributed::FamilyKey> keys;
  for (const nn::Param* param : assembly->model.params) {
    const distributed::FamilyKey key = distributed::family_key(*param);
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  }
  return keys;
}

replay::StepTrace trace_step(const RankRequest& request) {
  const config::Config& config = request.config;
  TraceRecorder recorder(block_bytes(request.device));
  const topology::RankGrid grid(request.world_size, config.parallel);
  const comm::World world = comm::make_meta_world(request.rank, grid, request.device, &recorder, request.capability);
  const device::MetaMemory meter(recorder);
  const auto assembly = step::assemble(config, world, request.vocab_size, false, request.build, nullptr,
                                       step::InitialValues::sampled, request.other_stages);
  MetaGraphs graphs(recorder);
  form_captured_regions(assembly->process, assembly->model, graphs);
  const int count = static_cast<int>(std::min<int64_t>(3, count_microbatches(request)));
  const bool splits = config::splits_backward(config.parallel);
  assembly->model.set_table(own_actions(assembly->process, {count, false, splits}));
  const std::vector<nn::Microbatch> batches(static_cast<size_t>(count), largest_batch(request, world));
  const step::StepInput input{batches, 1, 0, false, {}, nullptr, true};
  if (count > 1) assembly->model.set_table(own_actions(assembly->process, {1, false, splits}));
  const std::vector<nn::Microbatch> one(batches.begin(), batches.begin() + 1);
  step::enqueue_step(*assembly, {one, 1, 0, false, {}, nullptr, true});  // makes the one-time allocations
  replay::StepTrace out;
  {
    ActionTracer tracer(assembly->model, recorder, count);
    const graph::TapeHooks hooks(&recorder, nullptr);
    recorder.take();
    recorder.start();
    recorder.run_with_turns([&] { step::enqueue_step(*assembly, input); });
    out.actions = std::move(tracer.actions);
  }
  out.after = recorder.take();
  for (const auto& [name, group] : recorder.groups()) {
    if (group.ranks.size() > 1) out.groups[name] = group;
  }
  const pipeline::BorderShape border = step::border_shape(assembly->process, assembly->model, batches[0]);
  for (size_t stage = 0; stage + 1 < assembly->model.layers.size(); ++stage)
    out.border_bytes.push_back(border.bytes(static_cast<int>(stage)));
  for (const nn::Param* param : assembly->model.params)
    out.params.push_back(
        {param->name, param->local_shape, param->uses_per_microbatch, param->rounded ? param->rounded->bytes() : 0});
  return out;
}

}  // namespace metroplex::forecast

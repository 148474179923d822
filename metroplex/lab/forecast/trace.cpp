#include "forecast/trace.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/launch.h"
#include "config/attention.h"
#include "config/derived.h"
#include "device/cublas_workspace.h"
#include "device/device.h"
#include "moe/paged_stash.h"
#include "optim/clip.h"
#include "pipeline/stage_graphs.h"
#include "plan/graph_plan.h"
#include "step/batch.h"
#include "step/state_tensors.h"
#include "forecast/trace_inputs.h"
#include "forecast/trace_recorder.h"

namespace metroplex::forecast {
namespace {

using replay::TraceStep;

constexpr const char* kListener = "trace";

int64_t sum_net(const std::vector<replay::IslandTrace>& regions) {
  int64_t sum = 0;
  for (const replay::IslandTrace& region : regions) sum += region.net();
  return sum;
}

class Tracer final : public nn::StageObserver {
 public:
  Tracer(step::RankModel& model, TraceRecorder& recorder) : model_(model), recorder_(recorder) {
    for (size_t i = 0; i < model.params.size(); ++i) {
      model.params[i]->before_use.add(kListener, [this, i] { recorder_.end_step(TraceStep::End::opens, i); });
      model.params[i]->on_use.add(kListener, [this, i] { recorder_.end_step(TraceStep::End::used, i); });
    }
    for (const auto& stage : model.stages) stage->add_observer(kListener, *this);
    model.executor->observers().add(kListener, [this](const plan::Action& action, double) { after_action(action); });
    chunks.resize(model.stages.size());
  }
  ~Tracer() override {
    model_.executor->observers().remove(kListener);
    for (const auto& stage : model_.stages) stage->remove_observer(kListener);
    for (nn::Param* param : model_.params) {
      param->before_use.remove(kListener);
      param->on_use.remove(kListener);
    }
  }

  void before(const nn::RegionEvent& event) override {
    recorder_.begin_region({event.block, event.segment, event.pass == nn::Pass::backward, {}, {}});
    sample_gathered();
  }
  void after(const nn::RegionEvent& /*event*/) override {
    sample_gathered();
    recorder_.begin_region({});
  }

  std::vector<replay::ChunkTrace> chunks;  // of the last microbatch

 private:
  void sample_gathered() { gathered_ = std::max(gathered_, model_.families.gathered_bytes()); }
  void after_action(const plan::Action& action) {
    const int64_t border = model_.executor->border_bytes([&](const at::Tensor&x) { return !recorder_.in_pool(x); }),
                  crossed = border - std::exchange(border_, border);
    replay::ActionTrace trace;
    trace.regions = recorder_.take();
    trace.added = sum_net(trace.regions) - crossed;
    trace.gathered = std::exchange(gathered_, 0);
    replay::ChunkTrace& chunk = chunks.at(static_cast<size_t>(action.chunk));
    if (action.kind == plan::ActionKind::forward) chunk.forward = std::move(trace);
    if (action.kind == plan::ActionKind::backward) chunk.backward = std::move(trace);
    if (action.kind == plan::ActionKind::weight) chunk.weight = std::move(trace);
  }

  step::RankModel& model_;
  TraceRecorder& recorder_;
  int64_t border_ = 0, gathered_ = 0;
};

std::vector<replay::TransientFamily> transient_families(const step::RankModel& model, const TraceRecorder& recorder) {
  std::vector<replay::TransientFamily> all;
  for (const distributed::ParamFamily& family : model.families.all()) {
    if (!family.gradients) continue;
    const distributed::GradBufferOptions& options = family.gradients->options();
    if (!options.transient_buckets && !options.fp32_sums) continue;
    replay::TransientFamily& transient = all.emplace_back();
    transient.permanent = !options.transient_buckets;
    for (const distributed::FlatBucket& bucket : family.gradients->layout().buckets()) {
      const int64_t bytes = (bucket.end - bucket.begin) * static_cast<int64_t>(c10::elementSize(options.dtype));
      transient.bytes.push_back(transient.permanent ? 0 : bytes);
      if (options.fp32_sums) transient.buffers.push_back(recorder.rounded(bytes));
      std::vector<size_t>& params = transient.buckets.emplace_back();
      for (const size_t i : bucket.params) {
        const auto at = std::find(model.params.begin(), model.params.end(), family.gradients->layout().params()[i]);
        params.push_back(static_cast<size_t>(at - model.params.begin()));
      }
    }
  }
  return all;
}

// The second of two microbatches is recorded; the first makes the one-time allocations.
constexpr int kMicrobatches = 2;

std::vector<replay::ChunkTrace> trace_chunks(const step::ProcessContext& process, step::RankModel& model,
                                             TraceRecorder& recorder, const std::vector<nn::Microbatch>& batches,
                                             const OwnActions& form, const plan::GraphPlan* graphs) {
  Tracer tracer(model, recorder);
  const at::TensorOptions doubles = at::TensorOptions().dtype(at::kDouble).device(process.world->device());
  const at::Tensor factors = form.forward_only ? at::Tensor() : at::empty({form.num_microbatches}, doubles);
  const pipeline::BorderShape border = step::border_shape(process, model, batches[0]);
  recorder.run_with_turns([&] {
    model.executor->run({own_actions(process, form), batches, factors, border, graphs});
  });
  size_t next = 0;
  for (size_t stage = 0; stage < model.layers.size(); ++stage) {
    if (model.layers[stage].pp_rank != process.groups().pp.index()) continue;
    replay::ChunkTrace& chunk = tracer.chunks.at(next++);
    const auto number = static_cast<int>(stage);
    chunk.layers = model.layers[stage];
    chunk.input = stage > 0 ? border.bytes(number - 1) : 0;
    chunk.output = stage + 1 < model.layers.size() ? border.bytes(number) : 0;
  }
  recorder.take();
  return std::move(tracer.chunks);
}

std::map<std::string, int64_t> rounded_sizes(const pipeline::StaticBuffers& buffers, const TraceRecorder& recorder) {
  std::map<std::string, int64_t> sizes = buffers.sizes();
  for (auto& [form, bytes] : sizes) bytes = recorder.rounded(bytes);
  return sizes;
}

// Runs the stages with graphs as a real run does, but with one instance per chunk. Evaluation also has one instance
// per microbatch, because a real run reuses an instance only after its output has been sent.
replay::GraphTrace trace_graphs(const step::ProcessContext& process, step::RankModel& model, TraceRecorder& recorder,
                                MetaGraphs& device, std::vector<nn::Microbatch> batches) {
  replay::GraphTrace out;
  const auto instances = std::make_shared<pipeline::GraphInstances>(device, process.world->device());
  plan::GraphPlan plan, evaluation;
  OwnActions form{kMicrobatches};
  for (const auto& stage : model.stages) {
    stage->enable_capture(instances, pipeline::graph_scope(process.config.train));
    plan.instance_of.emplace_back(kMicrobatches, plan.num_instances++);
    auto& of_microbatches = evaluation.instance_of.emplace_back();
    for (int m = 0; m < kMicrobatches; ++m) of_microbatches.push_back(evaluation.num_instances++);
    form.output_in_pool.push_back(stage->regions().is_last_captured());
  }
  out.chunks = trace_chunks(process, model, recorder, batches, form, &plan);
  for (const auto& [form_of_gradient, bytes] : rounded_sizes(instances->gradients(), recorder))
    out.gradients += bytes;
  const bool evaluates = process.config.train.cuda_graph_impl == config::CudaGraphImpl::local;
  for (nn::Microbatch& batch : batches) batch.training = false;
  if (evaluates) trace_chunks(process, model, recorder, batches, {kMicrobatches, true}, &evaluation);
  for (size_t chunk = 0; chunk < model.stages.size(); ++chunk) {
    const pipeline::Stage& stage = *model.stages[chunk];
    out.chunks[chunk].output_in_pool = form.output_in_pool[chunk];
    const auto number = static_cast<int>(chunk);
    const int rank = process.groups().pp.index();
    const auto previous = process.placement.neighbour({rank, number}, -1);
    out.chunks[chunk].input_gradient_in_pool =
        stage.regions().is_first_captured() && previous && previous->rank == rank;
    const pipeline::GraphInstance& training = instances->at(number, false);
    out.graphs.push_back({static_cast<int>(stage.captured_regions().size()), training.pool_bytes().peak,
                          evaluates ? instances->at(evaluation.instance_of[chunk].back(), true).pool_bytes().peak : 0,
                          rounded_sizes(training.inputs(), recorder)});
  }
  return out;
}

// Size of the cuBLAS workspaces, one per stream of this rank's thread. Graph captures and warmup steps use a separate
// stream.
int64_t library_bytes(const RankRequest& request) {
  if (!request.device.is_cuda()) return 0;
  std::optional<std::string> setting = comm::process_environment("CUBLAS_WORKSPACE_CONFIG");
  if (!setting && request.config.run.deterministic_mode) setting = device::kDeterministicCublas;
  const bool graphs = request.config.train.cuda_graph_impl != config::CudaGraphImpl::none;
  return device::cublas_workspace_bytes(device::compute_capability(), setting) * (graphs ? 2 : 1);
}

}  // namespace

replay::RankTrace trace_rank(const RankRequest& request, const replay::RankTrace* passes) {
  const config::Config& config = request.config;
  TraceRecorder recorder(block_bytes(request.device));
  const topology::RankGrid grid(request.world_size, config.parallel);
  const comm::World world = comm::make_meta_world(request.rank, grid, request.device, &recorder, request.capability);
  const device::MetaMemory meter(recorder);
  MetaGraphs graphs(recorder);
  const auto assembly = step::assemble(config, world, request.vocab_size, false, request.build);

  replay::RankTrace out;
  out.parameters = assembly->model.values_bytes();
  out.gradients = assembly->model.families.gradients_bytes();
  const optim::Optimizer::Bytes state = assembly->optimization.optimizer->bytes();
  out.main_parameters = state.main_params;
  out.moments = state.moments;
  out.host = state.host;
  if (assembly->model.experts && assembly->model.experts->stash)
    out.host += assembly->model.experts->stash->host_bytes();
  out.tables = recorder.live() - out.parameters - out.gradients - out.main_parameters - out.moments - out.host;
  // Buffers of background saves are not allocated during tracing.
  out.host += step::copy_bytes(assembly->process, assembly->model, assembly->optimization);
  out.libraries = library_bytes(request);
  out.transient = transient_families(assembly->model, recorder);
  out.overlaps = config.parallel.overlap_grad_reduce;
  for (const nn::Param* param : assembly->model.params)
    out.params.push_back({param->name, param->local_shape, param->uses_per_microbatch});

  const std::vector<nn::Microbatch> batches(kMicrobatches, largest_batch(request, world));
  out.batch = step::batch_bytes(batches[0]);
  recorder.start();
  for (const distributed::ParamFamily& family : assembly->model.families.all()) {
    if (family.gradients) family.gradients->detach_params();
  }
  if (passes != nullptr) {
    out.chunks = passes->chunks;
    out.graphs = passes->graphs;
  } else {
    out.chunks = trace_chunks(assembly->process, assembly->model, recorder, batches,
                              {kMicrobatches, false, config::splits_backward(config.parallel)}, nullptr);
    if (config.train.captures_parts() && !request.eager)
      out.graphs = trace_graphs(assembly->process, assembly->model, recorder, graphs, batches);
  }
  recorder.start();
  assembly->optimization.optimizer->step(assembly->optimization.step_state);
  assembly->model.families.updated();
  for (replay::IslandTrace& part : recorder.take()) out.update = std::move(part);
  return out;
}

}  // namespace metroplex::forecast

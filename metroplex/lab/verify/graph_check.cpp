#include "verify/graph_check.h"

#include <optional>

#include "base/error.h"
#include "moe/context.h"
#include "step/step.h"
#include "step/partial_graphs.h"
#include "step/step_graphs.h"
#include "verify/verify.h"

namespace metroplex::verify {
namespace {

constexpr const char* kAround = "the step around its segments";

// Sets the recorder's current location to the running segment, for diagnostics. For whole-step graphs it is added
// with `cuts`, so that every segment is its own autograd region.
class OperationLocations final : public nn::StageObserver {
 public:
  OperationLocations(graph::TapeRecorder& recorder, const nn::Blocks& blocks)
      : recorder_(recorder), blocks_(blocks) {}
  void before(const nn::RegionEvent& event) override {
    const nn::Block& block = blocks_.at(static_cast<size_t>(event.block));
    const nn::Segment& segment = *block.segments.at(static_cast<size_t>(event.segment));
    recorder_.set_place(base::concat(event.pass == nn::Pass::forward ? "forward" : "backward", " of ", block.name,
                                     ", ", segment.name()));
  }
  void after(const nn::RegionEvent&) override { recorder_.set_place(kAround); }

 private:
  graph::TapeRecorder& recorder_;
  const nn::Blocks& blocks_;
};

// Adds one microbatch per rank. Doubles the number for the interleaved schedule, which needs full microbatch groups.
config::Config with_more_microbatches(config::Config config, const comm::World& world) {
  config::Train& train = config.train;
  train.global_batch_size += config.parallel.virtual_pipeline_model_parallel_size > 1
                                 ? train.global_batch_size
                                 : train.micro_batch_size * world.groups().dp.size();
  return config;
}

}  // namespace

config::Config graph_check_config(config::Config config) {
  const config::Config synthetic = verification_config(config, config.train.train_iters);
  config.data = synthetic.data;
  config.checkpoint = {};
  config.train.global_batch_size = synthetic.train.global_batch_size;
  config.train.step_batch_size_schedule.clear();
  config.train.rampup_batch_size.clear();
  config.train.eval_interval = 0;
  config.train.tensorboard_dir.clear();
  config.train.metrics_file.clear();
  config.train.expert_trace_file.clear();
  config.train.log_experts_interval = 0;
  return config;
}

GraphCheck check_graphs(const config::Config& requested, const comm::World& world, int64_t vocab_size,
                        const GraphCheckOptions& options, const step::StageBuilder& build) {
  MPX_CHECK(world.device().is_cpu(), "cuda graph", "captures are checked on the CPU; set run.device: cpu");
  MPX_CHECK(options.way == tape_check::CheckedGraphs::Way::compared || world.size() == 1, "cuda graph",
            "a closed arena of tensors needs one rank, not ", world.size());
  config::Config config = requested;
  config.train.cuda_graph_impl = config::CudaGraphImpl::none;  // the check makes its own captures
  config.train.cuda_graph_warmup_steps = 1;
  tape_check::CheckedGraphs device(options.way);
  const graph::TapeHooks hooks(nullptr, device.outside());
  const comm::World recorded_world = world.recorded(*device.recorder());
  const step::StageBuilder build_captured = [&](models::ModelContext context, const models::StageSpec& slice) {
    context.experts.captures_shared_expert = moe::captures_shared_expert(requested.train);
    return build(context, slice);
  };
  const auto assembly = step::assemble(config, recorded_world, vocab_size, /*forward_only=*/false, build_captured);
  std::vector<std::unique_ptr<OperationLocations>> locations;
  const bool parts = requested.train.captures_parts();
  for (const auto& stage : assembly->model.stages) {
    locations.push_back(std::make_unique<OperationLocations>(*device.recorder(), stage->blocks()));
    stage->add_observer("places of operations", *locations.back(), /*cuts=*/!parts);
  }
  device.recorder()->set_place(kAround);
  if (parts) {
    assembly->process.config.train.cuda_graph_impl = requested.train.cuda_graph_impl;
    assembly->graphs.partial = std::make_unique<step::PartialGraphs>(assembly->process, assembly->model, device);
  } else {
    assembly->graphs.step =
        std::make_unique<step::StepGraphs>(assembly->process, assembly->model, assembly->step_buffers, device);
  }
  const at::ScalarType floats = assembly->process.dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto take = [&](const config::Config& of, int64_t step) {
    const auto batches = [&](int64_t number) { return synthetic_batches(of, world, vocab_size, number, floats); };
    step::train_step(*assembly, {batches(2 * step), step + 1, step * of.train.global_batch_size, false, {}});
    step::evaluate_step(*assembly, batches(2 * step + 1));
  };
  const int64_t steps = 1 + options.captures;
  for (int64_t step = 0; step < steps; ++step) take(config, step);
  GraphCheck check;
  check.calls = device.calls();
  if (parts) {
    const step::PartialGraphs::Sizes sizes = assembly->graphs.partial->sizes();
    check.findings = device.findings();
    check.training = static_cast<size_t>(sizes.training.size.nodes);
    check.evaluation = static_cast<size_t>(sizes.evaluation.size.nodes);
  } else {
    check.training = device.operations().at(0);
    check.evaluation = device.operations().at(1);
    check.findings = device.findings({0, 0, 1, 0, 1, 1, 0});
    if (options.way == tape_check::CheckedGraphs::Way::compared) {
      device.next_form();
      for (int64_t step = steps; step < steps + options.captures; ++step)
        take(with_more_microbatches(config, world), step);
      for (tape_check::Finding& finding : device.findings()) check.findings.push_back(std::move(finding));
    }
  }
  for (const auto& stage : assembly->model.stages) stage->remove_observer("places of operations");
  return check;
}

}  // namespace metroplex::verify

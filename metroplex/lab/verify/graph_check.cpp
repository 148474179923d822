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

// Sets the recorder's current location to the running segment, for diagnostics. For whole-step graphs it listens with
// cuts, so that every segment is its own autograd region.
class OperationPlaces final : public nn::StageObserver {
 public:
  OperationPlaces(graph::TapeRecorder& recorder, const nn::Blocks& blocks) : recorder_(recorder), blocks_(blocks) {}
  void before(const nn::IslandEvent& event) override {
    const nn::Block& block = blocks_.at(static_cast<size_t>(event.block));
    const nn::Segment& segment = *block.segments.at(static_cast<size_t>(event.segment));
    recorder_.set_place(base::concat(event.pass == nn::Pass::forward ? "forward" : "backward", " of ", block.name,
                                     ", ", segment.name()));
  }
  void after(const nn::IslandEvent&) override { recorder_.set_place(kAround); }

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

GraphCheck check_graphs(const config::Config& asked, const comm::World& world, int64_t vocab_size,
                        const GraphCheckOptions& options, const step::StageBuilder& build) {
  MPX_CHECK(world.device().is_cpu(), "cuda graph", "captures are checked on the CPU; set run.device: cpu");
  MPX_CHECK(options.way == tape_check::CheckedGraphs::Way::compared || world.size() == 1, "cuda graph",
            "a closed arena of tensors needs one rank, not ", world.size());
  config::Config config = asked;
  config.train.cuda_graph_impl = config::CudaGraphImpl::none;  // the check makes its own captures
  config.train.cuda_graph_warmup_steps = 1;
  tape_check::CheckedGraphs device(options.way);
  const graph::TapeHooks hooks(nullptr, device.outside());
  const comm::World told = world.recorded(*device.recorder());
  const step::StageBuilder build_captured = [&](models::ModelContext context, const models::StageSlice& slice) {
    context.experts.captures_shared_expert = moe::captures_shared_expert(asked.train);
    return build(context, slice);
  };
  const auto a = step::assemble(config, told, vocab_size, /*forward_only=*/false, build_captured);
  std::vector<std::unique_ptr<OperationPlaces>> places;
  const bool parts = asked.train.captures_parts();
  for (const auto& stage : a->stages) {
    places.push_back(std::make_unique<OperationPlaces>(*device.recorder(), stage->blocks()));
    stage->listen("places of operations", *places.back(), /*cuts=*/!parts);
  }
  device.recorder()->set_place(kAround);
  if (parts) {
    a->config.train.cuda_graph_impl = asked.train.cuda_graph_impl;
    a->partial_graphs = std::make_unique<step::PartialGraphs>(*a, device);
  } else {
    a->graphs = std::make_unique<step::StepGraphs>(*a, device);
  }
  const at::ScalarType floats = a->dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto take = [&](const config::Config& of, int64_t step) {
    const auto batches = [&](int64_t number) { return synthetic_batches(of, world, vocab_size, number, floats); };
    step::train_step(*a, {batches(2 * step), step + 1, step * of.train.global_batch_size, false, {}});
    step::evaluate_step(*a, batches(2 * step + 1));
  };
  const int64_t steps = 1 + options.captures;
  for (int64_t step = 0; step < steps; ++step) take(config, step);
  GraphCheck check;
  check.calls = device.calls();
  if (parts) {
    const step::PartialGraphs::Sizes sizes = a->partial_graphs->sizes();
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
  for (const auto& stage : a->stages) stage->unlisten("places of operations");
  return check;
}

}  // namespace metroplex::verify

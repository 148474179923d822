#include "step/step.h"

#include "base/error.h"
#include "device/launch_point.h"
#include "optim/clip.h"
#include "step/step_errors.h"
#include "step/step_graphs.h"

namespace metroplex::step {
namespace {

void write_rates(const ProcessContext& process, Optimization& optimization, const StepInput& input) {
  int64_t samples = input.batches.at(0).sequence.step_samples;
  for (const nn::Microbatch& batch : input.batches) {
    if (batch.sequence.step_samples == 0) samples += batch.tokens.size(0) * process.groups().dp.size();
  }
  optimization.rates.cover(*optimization.schedule, *optimization.param_groups,
                           {optimization.steps, input.scheduled_samples, samples});
}

// Level-1 timers for the parts of a step, as recorder marks that a CPU replay also executes.
struct PartTimers {
  device::Recorder* recorder;
  Timers* const* timers;

  void mark(const char* name, void (Timers::*what)(const char*, int64_t)) const {
    if (timers == nullptr) return;
    const auto host = [name, what, all = timers] {
      if (*all != nullptr) ((*all)->*what)(name, 1);
    };
    recorder != nullptr ? recorder->mark(host) : host();
  }
  template <class Body>
  auto measure(const char* name, const Body& body) const {
    mark(name, &Timers::begin);
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      mark(name, &Timers::end);
    } else {
      auto result = body();
      mark(name, &Timers::end);
      return result;
    }
  }
};

// With hybrid context parallelism, the loss is a mean over samples, and any rank of dp x cp may compute a sample's
// loss.
void make_loss_factors(const ProcessContext& process, const Optimization& optimization,
                       const StepBuffers& step_buffers, const std::vector<nn::Microbatch>& batches) {
  const auto microbatches = static_cast<int64_t>(batches.size());
  const int64_t samples = batches.at(0).sequence.step_samples;
  const at::Tensor tokens = step_buffers.inputs.narrow(0, 1, microbatches);
  const at::Tensor& factors = step_buffers.loss_factors;
  const kernels::LossFactorShape shape{microbatches,
                                       samples > 0 ? process.groups().dp_cp.size() : process.groups().cp.size(),
                                       process.config.train.calculate_per_token_loss, samples};
  device::launch(process.world->target(), {"loss_factors", {&optimization.step_state.tensor(), &tokens}, {&factors}},
                 kernels::loss_factors, kernels::loss_factors_cuda,
                 static_cast<const kernels::StepValues*>(optimization.step_state.values()),
                 static_cast<const double*>(tokens.const_data_ptr()),
                 static_cast<double*>(factors.mutable_data_ptr()), shape);
}

// Computes the step decision from the sums and the gradient norm: whether to update, and with which factor and rates.
// Same on all ranks.
void decide_step(const ProcessContext& process, Optimization& optimization, const StepVector& vector,
                 const at::Tensor& gradient_numbers) {
  const at::Tensor summed = vector.summed(), decision_tensor = vector.decision_tensor();
  const kernels::JudgePlace place{optimization.step_state.values(),
                                  optimization.step_state.rates(),
                                  static_cast<const double*>(optimization.rates.tensor().const_data_ptr()),
                                  vector.sums(),
                                  static_cast<const double*>(gradient_numbers.const_data_ptr()),
                                  vector.decision()};
  device::launch(process.world->target(),
                 {"judge_step",
                  {&optimization.step_state.tensor(), &optimization.rates.tensor(), &summed, &gradient_numbers},
                  {&optimization.step_state.tensor(), &decision_tensor}},
                 kernels::judge_step, kernels::judge_step_cuda, make_step_rules(process, optimization), place);
}

// All operations read the step decision on the device.
void update(RankModel& model, Optimization& optimization, const PartTimers& timers) {
  timers.measure("optimizer-inner-step", [&] { optimization.optimizer->step(optimization.step_state); });
  for (nn::Buffer* buffer : model.buffers) {
    if (buffer->frozen) continue;
    const at::Tensor before = buffer->data.clone();
    buffer->apply(*buffer);
    optimization.step_state.restore_if_skipped(buffer->data, before);
  }
  timers.measure("params-all-gather", [&] { model.families.updated(); });
}

// Calls StepInput::on_gradients; the host waits. Does nothing for a step that will run again.
void report_gradients(const ProcessContext& process, const Optimization& optimization, const StepInput& input,
                      const StepVector& vector) {
  const kernels::StepRules rules = make_step_rules(process, optimization);
  const StepVector host_vector = vector.on_host(process.world->target());
  if (host_vector.sums()->overflows > 0) return;
  input.on_gradients(kernels::unscale_of(rules.per_token, host_vector.sums()->tokens, rules.ranks,
                                         optimization.step_state.read().loss_scale));
}

std::string skip_reason(const ProcessContext& process, const Optimization& optimization,
                        const kernels::StepSums& sums, const kernels::StepVerdict& decision) {
  if (sums.overflows > 0) return base::concat("on ", sums.overflows, " ranks rows of experts exceeded their buffers");
  if (optimization.scaler && decision.found_inf != 0)
    return base::concat("gradients overflowed at loss scale ", decision.loss_scale);
  if (decision.over_limit == 0) return "";
  return base::concat("the gradient norm ", decision.grad_norm, " is above precision.grad_norm_skip_threshold = ",
                      process.config.precision.grad_norm_skip_threshold);
}

void check_numbers(Assembly& assembly, const StepInput& input, const StepVector& host_vector) {
  const kernels::StepVerdict& decision = *host_vector.decision();
  MPX_ASSERT(decision.row >= 0 && decision.row < optim::RateTable::kRows, "the step took row ", decision.row,
             " of the table of rates");
  if (host_vector.sums()->overflows > 0) return;
  const kernels::StepRules rules = make_step_rules(assembly.process, assembly.optimization);
  if (rules.holds_bad_losses && host_vector.sums()->bad_losses > 0)
    throw_nonfinite_loss(assembly, input, host_vector.losses());
  if (rules.holds_bad_gradients && decision.found_inf != 0)
    throw_nonfinite_grad(assembly, input, assembly.step_buffers.loss_factors);
}

StepOutcome make_outcome(Assembly& assembly, const StepInput& input, const EnqueuedStep& step) {
  const StepVector host_vector = step.vector.on_host(assembly.process.world->target());
  const kernels::StepSums& sums = *host_vector.sums();
  const kernels::StepVerdict& decision = *host_vector.decision();
  assembly.optimization.steps = static_cast<int64_t>(decision.steps);
  check_numbers(assembly, input, host_vector);
  if (sums.overflows > 0) assembly.step_buffers.flags.zero_();
  StepOutcome outcome;
  const auto mean = [&](double sum) { return sums.weight > 0 ? sum / sums.weight : 0.0; };
  outcome.loss = mean(sums.loss);
  for (int64_t i = 0; i < host_vector.num_terms(); ++i)
    outcome.terms[assembly.step_buffers.loss_terms.names()[static_cast<size_t>(i)]] = mean(host_vector.terms()[i]);
  outcome.lr = decision.lr;
  outcome.grad_norm = decision.grad_norm;
  outcome.loss_scale = decision.loss_scale;
  outcome.updated = decision.updates != 0;
  outcome.skipped = skip_reason(assembly.process, assembly.optimization, sums, decision);
  outcome.overflow = sums.overflows > 0;
  outcome.num_zeros =
      assembly.process.config.train.log_num_zeros_in_grad ? static_cast<int64_t>(decision.num_zeros) : -1;
  outcome.tokens = sums.tokens;
  outcome.stop = sums.stop > 0;
  return outcome;
}

}  // namespace

EnqueuedStep enqueue_step(Assembly& assembly, const StepInput& input) {
  const ProcessContext& process = assembly.process;
  RankModel& model = assembly.model;
  Optimization& optimization = assembly.optimization;
  StepBuffers& step_buffers = assembly.step_buffers;
  StepGraphs* const graphs = input.on_gradients || input.eager ? nullptr : assembly.graphs.step.get();
  write_rates(process, optimization, input);
  if (process.replay_watch) process.replay_watch->set_step(base::concat("iteration ", input.iteration));
  const PartTimers timers{process.world->target().recorder, graphs != nullptr ? graphs->timers() : &input.timers};
  const auto body = [&](const std::vector<nn::Microbatch>& batches) {
    const auto count = static_cast<int64_t>(batches.size());
    make_loss_factors(process, optimization, step_buffers, batches);
    const pipeline::PipelineOutput output = timers.measure("forward-backward", [&] {
      begin_gradients(model, count);
      return assembly.run_pipeline(batches, step_buffers.loss_factors, input.eager);
    });
    timers.measure("all-grads-sync", [&] { finish_gradients(process, model, optimization); });
    step_buffers.loss_terms.agree(output.terms, process.groups().world);
    StepVector vector = reduce_losses(process, step_buffers, output, count);
    const at::Tensor numbers = timers.measure(
        "optimizer-clip-main-grad", [&] { return optim::gradient_numbers(gradient_norm_parts(process, model)); });
    if (input.on_gradients) report_gradients(process, optimization, input, vector);
    decide_step(process, optimization, vector, numbers);
    update(model, optimization, timers);
    return vector;
  };
  if (graphs != nullptr) return {graphs->train(input, body)};
  write_step_inputs(process, step_buffers, input.batches, input.stop);
  return {body(input.batches)};
}

StepOutcome read_outcome(Assembly& assembly, const StepInput& input, const EnqueuedStep& step) {
  StepOutcome outcome = make_outcome(assembly, input, step);
  const config::TokenDispatcher dispatcher = assembly.process.config.model.moe_token_dispatcher_type;
  if (!outcome.overflow || dispatcher != config::TokenDispatcher::static_buffer) return outcome;
  const std::string why = check_overflow(assembly.process, assembly.model);
  const RerunScope repeating(assembly.model);
  StepInput eager = input;
  eager.eager = true;
  outcome = make_outcome(assembly, eager, enqueue_step(assembly, eager));
  outcome.repeated = why;
  return outcome;
}

// A capture runs no timed work, and waiting for the device would end it.
void time_actions(RankModel& model, const CapturedGraphs& graphs, Timers& timers) {
  model.executor->observers().add("timers", [&graphs, &timers](const plan::Action& action, double seconds) {
    if (graphs.step != nullptr && graphs.step->capturing()) return;
    timers.add(plan::action_name(action.kind), 2, seconds);
  });
}

StepOutcome train_step(Assembly& assembly, const StepInput& input) {
  return read_outcome(assembly, input, enqueue_step(assembly, input));
}

LossSum evaluate_step(Assembly& assembly, const std::vector<nn::Microbatch>& given, bool stop) {
  const ProcessContext& process = assembly.process;
  StepBuffers& step_buffers = assembly.step_buffers;
  const auto body = [&](const std::vector<nn::Microbatch>& batches) {
    const std::vector<at::Tensor> losses = assembly.run_pipeline(batches).last;
    return reduce_losses(process, step_buffers, {losses, {}}, static_cast<int64_t>(batches.size()));
  };
  if (process.replay_watch) process.replay_watch->set_step("an evaluation");
  const auto run_eagerly = [&] {
    write_step_inputs(process, step_buffers, given, stop);
    return body(given);
  };
  const StepVector vector =
      assembly.graphs.step != nullptr ? assembly.graphs.step->evaluate(given, stop, body) : run_eagerly();
  StepVector host_vector = vector.on_host(process.world->target());
  if (host_vector.sums()->overflows > 0) {
    step_buffers.flags.zero_();
    check_overflow(process, assembly.model);
    const RerunScope repeating(assembly.model);
    host_vector = run_eagerly().on_host(process.world->target());
  }
  const kernels::StepSums& sums = *host_vector.sums();
  return {sums.loss, sums.weight, sums.stop > 0};
}

}  // namespace metroplex::step

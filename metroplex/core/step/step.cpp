#include "step/step.h"

#include "base/error.h"
#include "device/launch_point.h"
#include "optim/clip.h"
#include "step/step_errors.h"
#include "step/step_graphs.h"

namespace metroplex::step {
namespace {

void write_rates(Assembly& assembly, const StepInput& input) {
  int64_t samples = input.batches.at(0).sequence.step_samples;
  for (const nn::Microbatch& batch : input.batches) {
    if (batch.sequence.step_samples == 0) samples += batch.tokens.size(0) * assembly.groups().dp.size();
  }
  assembly.rates.cover(*assembly.schedule, *assembly.param_groups,
                       {assembly.steps, input.scheduled_samples, samples});
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
void make_loss_factors(Assembly& assembly, const std::vector<nn::Microbatch>& batches) {
  const auto microbatches = static_cast<int64_t>(batches.size());
  const int64_t samples = batches.at(0).sequence.step_samples;
  const at::Tensor tokens = assembly.step_inputs.narrow(0, 1, microbatches);
  const at::Tensor& factors = assembly.loss_factors;
  const kernels::LossFactorShape shape{microbatches,
                                       samples > 0 ? assembly.groups().dp_cp.size() : assembly.groups().cp.size(),
                                       assembly.config.train.calculate_per_token_loss, samples};
  device::launch(assembly.world->target(), {"loss_factors", {&assembly.step.tensor(), &tokens}, {&factors}},
                 kernels::loss_factors, kernels::loss_factors_cuda,
                 static_cast<const kernels::StepValues*>(assembly.step.values()),
                 static_cast<const double*>(tokens.const_data_ptr()),
                 static_cast<double*>(factors.mutable_data_ptr()), shape);
}

// Computes the step decision from the sums and the gradient norm: whether to update, and with which factor and rates.
// Same on all ranks.
void decide_step(Assembly& assembly, const StepVector& vector, const at::Tensor& gradient_numbers) {
  const at::Tensor summed = vector.summed(), decision_tensor = vector.decision_tensor();
  const kernels::JudgePlace place{assembly.step.values(),
                                  assembly.step.rates(),
                                  static_cast<const double*>(assembly.rates.tensor().const_data_ptr()),
                                  vector.sums(),
                                  static_cast<const double*>(gradient_numbers.const_data_ptr()),
                                  vector.decision()};
  device::launch(assembly.world->target(),
                 {"judge_step",
                  {&assembly.step.tensor(), &assembly.rates.tensor(), &summed, &gradient_numbers},
                  {&assembly.step.tensor(), &decision_tensor}},
                 kernels::judge_step, kernels::judge_step_cuda, make_step_rules(assembly), place);
}

// All operations read the step decision on the device.
void update(Assembly& assembly, const PartTimers& timers) {
  timers.measure("optimizer-inner-step", [&] { assembly.optimizer->step(assembly.step); });
  for (nn::Buffer* buffer : assembly.buffers) {
    if (buffer->frozen) continue;
    const at::Tensor before = buffer->data.clone();
    buffer->apply(*buffer);
    assembly.step.restore_if_skipped(buffer->data, before);
  }
  timers.measure("params-all-gather", [&] { assembly.families.updated(); });
}

// Calls StepInput::on_gradients; the host waits. Does nothing for a step that will run again.
void report_gradients(const Assembly& assembly, const StepInput& input, const StepVector& vector) {
  const kernels::StepRules rules = make_step_rules(assembly);
  const StepVector host_vector = vector.on_host(assembly.world->target());
  if (host_vector.sums()->overflows > 0) return;
  input.on_gradients(
      kernels::unscale_of(rules.per_token, host_vector.sums()->tokens, rules.ranks, assembly.step.read().loss_scale));
}

std::string skip_reason(const Assembly& assembly, const kernels::StepSums& sums,
                        const kernels::StepVerdict& decision) {
  if (sums.overflows > 0) return base::concat("on ", sums.overflows, " ranks rows of experts exceeded their buffers");
  if (assembly.scaler && decision.found_inf != 0)
    return base::concat("gradients overflowed at loss scale ", decision.loss_scale);
  if (decision.over_limit == 0) return "";
  return base::concat("the gradient norm ", decision.grad_norm, " is above precision.grad_norm_skip_threshold = ",
                      assembly.config.precision.grad_norm_skip_threshold);
}

void check_numbers(Assembly& assembly, const StepInput& input, const StepVector& host_vector) {
  const kernels::StepVerdict& decision = *host_vector.decision();
  MPX_ASSERT(decision.row >= 0 && decision.row < optim::RateTable::kRows, "the step took row ", decision.row,
             " of the table of rates");
  if (host_vector.sums()->overflows > 0) return;
  const kernels::StepRules rules = make_step_rules(assembly);
  if (rules.holds_bad_losses && host_vector.sums()->bad_losses > 0)
    throw_nonfinite_loss(assembly, input, host_vector.losses(), host_vector.microbatches());
  if (rules.holds_bad_gradients && decision.found_inf != 0)
    throw_nonfinite_grad(assembly, input, assembly.loss_factors);
}

StepOutcome make_outcome(Assembly& assembly, const StepInput& input, const EnqueuedStep& step) {
  const StepVector host_vector = step.vector.on_host(assembly.world->target());
  const kernels::StepSums& sums = *host_vector.sums();
  const kernels::StepVerdict& decision = *host_vector.decision();
  assembly.steps = static_cast<int64_t>(decision.steps);
  check_numbers(assembly, input, host_vector);
  if (sums.overflows > 0) assembly.step_flags.zero_();
  StepOutcome outcome;
  const auto mean = [&](double sum) { return sums.weight > 0 ? sum / sums.weight : 0.0; };
  outcome.loss = mean(sums.loss);
  for (int64_t i = 0; i < host_vector.num_terms(); ++i)
    outcome.terms[assembly.loss_terms.names()[static_cast<size_t>(i)]] = mean(host_vector.terms()[i]);
  outcome.lr = decision.lr;
  outcome.grad_norm = decision.grad_norm;
  outcome.loss_scale = decision.loss_scale;
  outcome.updated = decision.updates != 0;
  outcome.skipped = skip_reason(assembly, sums, decision);
  outcome.overflow = sums.overflows > 0;
  outcome.num_zeros = assembly.config.train.log_num_zeros_in_grad ? static_cast<int64_t>(decision.num_zeros) : -1;
  outcome.tokens = sums.tokens;
  outcome.stop = sums.stop > 0;
  return outcome;
}

bool has_static_buffers(const Assembly& assembly) {
  return assembly.config.model.moe_token_dispatcher_type == config::TokenDispatcher::static_buffer;
}

}  // namespace

EnqueuedStep enqueue_step(Assembly& assembly, const StepInput& input) {
  write_rates(assembly, input);
  const bool captured = assembly.graphs != nullptr && !input.on_gradients && !input.eager;
  const PartTimers timers{assembly.world->target().recorder, captured ? assembly.graphs->timers() : &input.timers};
  const auto body = [&](const std::vector<nn::Microbatch>& batches) {
    const auto count = static_cast<int64_t>(batches.size());
    make_loss_factors(assembly, batches);
    const pipeline::PipelineOutput output = timers.measure("forward-backward", [&] {
      begin_gradients(assembly, count);
      return assembly.executor->run(assembly.pipeline_input(batches, assembly.loss_factors, false, input.eager));
    });
    timers.measure("all-grads-sync", [&] { finish_gradients(assembly); });
    assembly.loss_terms.agree(output.terms, assembly.groups().world);
    StepVector vector = reduce_losses(assembly, output, count);
    const at::Tensor numbers = timers.measure("optimizer-clip-main-grad",
                                              [&] { return optim::gradient_numbers(assembly.gradient_parts()); });
    if (input.on_gradients) report_gradients(assembly, input, vector);
    decide_step(assembly, vector, numbers);
    update(assembly, timers);
    return vector;
  };
  if (captured) return {assembly.graphs->train(input, body)};
  write_step_inputs(assembly, input.batches, input.stop);
  return {body(input.batches)};
}

StepOutcome read_outcome(Assembly& assembly, const StepInput& input, const EnqueuedStep& step) {
  StepOutcome outcome = make_outcome(assembly, input, step);
  if (!outcome.overflow || !has_static_buffers(assembly)) return outcome;
  const std::string why = check_overflow(assembly);
  const RerunScope repeating(assembly);
  StepInput eager = input;
  eager.eager = true;
  outcome = make_outcome(assembly, eager, enqueue_step(assembly, eager));
  outcome.repeated = why;
  return outcome;
}

// A capture runs no timed work, and waiting for the device would end it.
void time_actions(Assembly& assembly, Timers& timers) {
  assembly.executor->observers().add("timers", [&assembly, &timers](const plan::Action& action, double seconds) {
    if (assembly.graphs != nullptr && assembly.graphs->capturing()) return;
    timers.add(plan::action_name(action.kind), 2, seconds);
  });
}

StepOutcome train_step(Assembly& assembly, const StepInput& input) {
  return read_outcome(assembly, input, enqueue_step(assembly, input));
}

LossSum evaluate_step(Assembly& assembly, const std::vector<nn::Microbatch>& given, bool stop) {
  const auto body = [&](const std::vector<nn::Microbatch>& batches) {
    const std::vector<at::Tensor> losses = assembly.executor->run(assembly.pipeline_input(batches, {}, true)).last;
    return reduce_losses(assembly, {losses, {}}, static_cast<int64_t>(batches.size()));
  };
  StepVector vector;
  if (assembly.graphs != nullptr) {
    vector = assembly.graphs->evaluate(given, stop, body);
  } else {
    write_step_inputs(assembly, given, stop);
    vector = body(given);
  }
  StepVector host_vector = vector.on_host(assembly.world->target());
  if (host_vector.sums()->overflows > 0) {
    assembly.step_flags.zero_();
    check_overflow(assembly);
    const RerunScope repeating(assembly);
    write_step_inputs(assembly, given, stop);
    host_vector = body(given).on_host(assembly.world->target());
  }
  const kernels::StepSums& sums = *host_vector.sums();
  return {sums.loss, sums.weight, sums.stop > 0};
}

}  // namespace metroplex::step

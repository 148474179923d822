#include "step/step.h"

#include "base/error.h"
#include "device/launch_point.h"
#include "optim/clip.h"
#include "step/step_errors.h"
#include "step/step_graphs.h"

namespace metroplex::step {
namespace {

void write_rates(Assembly& a, const StepInput& input) {
  int64_t samples = input.batches.at(0).samples_of_step;
  for (const nn::Microbatch& batch : input.batches) {
    if (batch.samples_of_step == 0) samples += batch.tokens.size(0) * a.groups().dp.size();
  }
  a.rates.cover(*a.schedule, *a.param_groups, {a.steps, input.scheduled_samples, samples});
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
void make_loss_factors(Assembly& a, const std::vector<nn::Microbatch>& batches) {
  const auto microbatches = static_cast<int64_t>(batches.size());
  const int64_t samples = batches.at(0).samples_of_step;
  const at::Tensor tokens = a.step_inputs.narrow(0, 1, microbatches);
  const at::Tensor& factors = a.loss_factors;
  const kernels::LossFactorShape shape{microbatches, samples > 0 ? a.groups().dp_cp.size() : a.groups().cp.size(),
                                       a.config.train.calculate_per_token_loss, samples};
  device::launch(a.world->target(), {"loss_factors", {&a.step.tensor(), &tokens}, {&factors}}, kernels::loss_factors,
                 kernels::loss_factors_cuda, static_cast<const kernels::StepValues*>(a.step.values()),
                 static_cast<const double*>(tokens.const_data_ptr()),
                 static_cast<double*>(factors.mutable_data_ptr()), shape);
}

// Computes the step decision from the sums and the gradient norm: whether to update, and with which factor and rates.
// Same on all ranks.
void judge(Assembly& a, const StepVector& vector, const at::Tensor& gradient_numbers) {
  const at::Tensor summed = vector.summed(), judged = vector.judged();
  const kernels::JudgePlace place{a.step.values(),
                                  a.step.rates(),
                                  static_cast<const double*>(a.rates.tensor().const_data_ptr()),
                                  vector.sums(),
                                  static_cast<const double*>(gradient_numbers.const_data_ptr()),
                                  vector.verdict()};
  device::launch(
      a.world->target(),
      {"judge_step", {&a.step.tensor(), &a.rates.tensor(), &summed, &gradient_numbers}, {&a.step.tensor(), &judged}},
      kernels::judge_step, kernels::judge_step_cuda, rules_of(a), place);
}

// All operations read the step decision on the device.
void update(Assembly& a, const PartTimers& timers) {
  timers.measure("optimizer-inner-step", [&] { a.optimizer->step(a.step); });
  for (nn::Buffer* buffer : a.buffers) {
    if (buffer->frozen) continue;
    const at::Tensor before = buffer->data.clone();
    buffer->apply(*buffer);
    a.step.put_back(buffer->data, before);
  }
  timers.measure("params-all-gather", [&] { a.families.updated(); });
}

// Calls StepInput::on_gradients; the host waits. Does nothing for a step that will run again.
void tell_gradients(const Assembly& a, const StepInput& input, const StepVector& vector) {
  const kernels::StepRules rules = rules_of(a);
  const StepVector told = vector.on_host(a.world->target());
  if (told.sums()->overflows > 0) return;
  input.on_gradients(
      kernels::unscale_of(rules.per_token, told.sums()->tokens, rules.ranks, a.step.read().loss_scale));
}

std::string why_skipped(const Assembly& a, const kernels::StepSums& sums, const kernels::StepVerdict& verdict) {
  if (sums.overflows > 0) return base::concat("on ", sums.overflows, " ranks rows of experts exceeded their buffers");
  if (a.scaler && verdict.found_inf != 0)
    return base::concat("gradients overflowed at loss scale ", verdict.loss_scale);
  if (verdict.over_limit == 0) return "";
  return base::concat("the gradient norm ", verdict.grad_norm,
                      " is above precision.grad_norm_skip_threshold = ", a.config.precision.grad_norm_skip_threshold);
}

void check_numbers(Assembly& a, const StepInput& input, const StepVector& told) {
  const kernels::StepVerdict& verdict = *told.verdict();
  MPX_ASSERT(verdict.row >= 0 && verdict.row < optim::RateTable::kRows, "the step took row ", verdict.row,
             " of the table of rates");
  if (told.sums()->overflows > 0) return;
  const kernels::StepRules rules = rules_of(a);
  if (rules.holds_bad_losses && told.sums()->bad_losses > 0)
    refuse_losses(a, input, told.losses(), told.microbatches());
  if (rules.holds_bad_gradients && verdict.found_inf != 0) refuse_gradients(a, input, a.loss_factors);
}

StepOutcome outcome_of(Assembly& a, const StepInput& input, const EnqueuedStep& step) {
  const StepVector told = step.vector.on_host(a.world->target());
  const kernels::StepSums& sums = *told.sums();
  const kernels::StepVerdict& verdict = *told.verdict();
  a.steps = static_cast<int64_t>(verdict.steps);
  check_numbers(a, input, told);
  if (sums.overflows > 0) a.step_flags.zero_();
  StepOutcome outcome;
  const auto mean = [&](double sum) { return sums.weight > 0 ? sum / sums.weight : 0.0; };
  outcome.loss = mean(sums.loss);
  for (int64_t i = 0; i < told.num_terms(); ++i)
    outcome.terms[a.loss_terms.names()[static_cast<size_t>(i)]] = mean(told.terms()[i]);
  outcome.lr = verdict.lr;
  outcome.grad_norm = verdict.grad_norm;
  outcome.loss_scale = verdict.loss_scale;
  outcome.updated = verdict.updates != 0;
  outcome.skipped = why_skipped(a, sums, verdict);
  outcome.overflow = sums.overflows > 0;
  outcome.num_zeros = a.config.train.log_num_zeros_in_grad ? static_cast<int64_t>(verdict.num_zeros) : -1;
  outcome.tokens = sums.tokens;
  outcome.stop = sums.stop > 0;
  return outcome;
}

bool has_static_buffers(const Assembly& a) {
  return a.config.model.moe_token_dispatcher_type == config::TokenDispatcher::static_buffer;
}

}  // namespace

EnqueuedStep enqueue_step(Assembly& a, const StepInput& input) {
  write_rates(a, input);
  const bool captured = a.graphs != nullptr && !input.on_gradients && !input.eager;
  const PartTimers timers{a.world->target().recorder, captured ? a.graphs->timers() : &input.timers};
  const auto body = [&](const std::vector<nn::Microbatch>& batches) {
    const auto count = static_cast<int64_t>(batches.size());
    make_loss_factors(a, batches);
    const pipeline::PipelineOutput output = timers.measure("forward-backward", [&] {
      begin_gradients(a, count);
      return a.executor->run(a.pipeline_input(batches, a.loss_factors, false, input.eager));
    });
    timers.measure("all-grads-sync", [&] { finish_gradients(a); });
    a.loss_terms.agree(output.terms, a.groups().world);
    StepVector vector = summed_losses(a, output, count);
    const at::Tensor numbers =
        timers.measure("optimizer-clip-main-grad", [&] { return optim::gradient_numbers(a.gradient_parts()); });
    if (input.on_gradients) tell_gradients(a, input, vector);
    judge(a, vector, numbers);
    update(a, timers);
    return vector;
  };
  if (captured) return {a.graphs->train(input, body)};
  write_step_inputs(a, input.batches, input.stop);
  return {body(input.batches)};
}

StepOutcome read_outcome(Assembly& a, const StepInput& input, const EnqueuedStep& step) {
  StepOutcome outcome = outcome_of(a, input, step);
  if (!outcome.overflow || !has_static_buffers(a)) return outcome;
  const std::string why = overflow_of(a);
  const Repeating repeating(a);
  StepInput eager = input;
  eager.eager = true;
  outcome = outcome_of(a, eager, enqueue_step(a, eager));
  outcome.repeated = why;
  return outcome;
}

// A capture runs no timed work, and waiting for the device would end it.
void time_actions(Assembly& a, Timers& timers) {
  a.executor->observers().add("timers", [&a, &timers](const plan::Action& action, double seconds) {
    if (a.graphs != nullptr && a.graphs->capturing()) return;
    timers.add(plan::action_name(action.kind), 2, seconds);
  });
}

StepOutcome train_step(Assembly& a, const StepInput& input) { return read_outcome(a, input, enqueue_step(a, input)); }

LossSum evaluate_step(Assembly& a, const std::vector<nn::Microbatch>& given, bool stop) {
  const auto body = [&](const std::vector<nn::Microbatch>& batches) {
    const std::vector<at::Tensor> losses = a.executor->run(a.pipeline_input(batches, {}, true)).last;
    return summed_losses(a, {losses, {}}, static_cast<int64_t>(batches.size()));
  };
  StepVector vector;
  if (a.graphs != nullptr) {
    vector = a.graphs->evaluate(given, stop, body);
  } else {
    write_step_inputs(a, given, stop);
    vector = body(given);
  }
  StepVector told = vector.on_host(a.world->target());
  if (told.sums()->overflows > 0) {
    a.step_flags.zero_();
    overflow_of(a);
    const Repeating repeating(a);
    write_step_inputs(a, given, stop);
    told = body(given).on_host(a.world->target());
  }
  const kernels::StepSums& sums = *told.sums();
  return {sums.loss, sums.weight, sums.stop > 0};
}

}  // namespace metroplex::step

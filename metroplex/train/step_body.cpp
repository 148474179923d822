#include "train/step_body.h"

#include <ATen/ops/empty.h>

#include "optim/clip.h"
#include "train/assemble.h"
#include "train/gradients.h"
#include "train/step_rules.h"
#include "train/timers.h"

namespace metroplex::train {
namespace {

namespace kernels = cuda::kernels;

// Parts of a step, level 1, timed where a replay comes by too.
struct PartTimers {
  cuda::Recorder* recorder;
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

void make_loss_factors(Assembly& a, int64_t microbatches) {
  const at::Tensor tokens = a.step_inputs.narrow(0, 1, microbatches);
  const at::Tensor& factors = a.loss_factors;
  const kernels::LossFactorShape shape{microbatches, a.groups().cp.size(), a.config.train.calculate_per_token_loss};
  cuda::launch(a.world->target(), {"loss_factors", {&a.step.tensor(), &tokens}, {&factors}}, kernels::loss_factors,
               kernels::loss_factors_cuda, static_cast<const kernels::StepValues*>(a.step.values()),
               static_cast<const double*>(tokens.const_data_ptr()), static_cast<double*>(factors.mutable_data_ptr()),
               shape);
}

// Decides from sums and gradients whether to update, and with what; the same on every rank.
void judge(Assembly& a, const StepVector& vector, const at::Tensor& gradient_numbers) {
  const at::Tensor summed = vector.summed(), judged = vector.judged();
  const kernels::JudgePlace place{a.step.values(),
                                  a.step.rates(),
                                  static_cast<const double*>(a.rates.tensor().const_data_ptr()),
                                  vector.sums(),
                                  static_cast<const double*>(gradient_numbers.const_data_ptr()),
                                  vector.verdict()};
  cuda::launch(
      a.world->target(),
      {"judge_step", {&a.step.tensor(), &a.rates.tensor(), &summed, &gradient_numbers}, {&a.step.tensor(), &judged}},
      kernels::judge_step, kernels::judge_step_cuda, rules_of(a), place);
}

// All of it reads whether the step updates.
void update(Assembly& a, const PartTimers& timers) {
  timers.measure("optimizer-inner-step", [&] { a.optimizer->step(a.step); });
  for (nn::Buffer* buffer : a.buffers) {
    const at::Tensor before = buffer->data.clone();
    buffer->apply(*buffer);
    a.step.put_back(buffer->data, before);
  }
  timers.measure("params-all-gather", [&] { a.families.updated(); });
}

// For StepInput::on_gradients: the host waits.
double unscale_on_host(const Assembly& a, const StepVector& vector) {
  const kernels::StepRules rules = rules_of(a);
  return kernels::unscale_of(rules.per_token, vector.on_host(a.world->target()).sums()->tokens, rules.ranks,
                             a.step.read().loss_scale);
}

}  // namespace

StepVector training_body(Assembly& a, const std::vector<nn::Microbatch>& batches, const BodyOptions& options) {
  const PartTimers timers{a.world->target().recorder, options.timers};
  const auto count = static_cast<int64_t>(batches.size());
  make_loss_factors(a, count);
  const pipeline::PipelineOutput output =
      timers.measure("forward-backward", [&] { return forward_backward(a, batches, a.loss_factors); });
  timers.measure("all-grads-sync", [&] { finish_gradients(a); });
  a.loss_terms.agree(output.terms, a.groups().world);
  StepVector vector = summed_losses(a, output, count);
  const at::Tensor numbers =
      timers.measure("optimizer-clip-main-grad", [&] { return optim::gradient_numbers(a.norm_parts()); });
  if (options.on_gradients) options.on_gradients(unscale_on_host(a, vector));
  judge(a, vector, numbers);
  update(a, timers);
  return vector;
}

StepVector evaluation_body(Assembly& a, const std::vector<nn::Microbatch>& batches) {
  const auto count = static_cast<int64_t>(batches.size());
  const std::vector<at::Tensor> losses = a.run_pipeline(batches, {}, true).last;
  return summed_losses(a, {losses, {}}, count);
}

}  // namespace metroplex::train

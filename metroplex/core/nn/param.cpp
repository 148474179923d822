#include "nn/param.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "base/error.h"

namespace metroplex::nn {

namespace {

void add_fp16(Param& param, const at::Tensor& one_call) {
  const at::Tensor rounded = one_call.to(at::kHalf);
  param.microbatch_grad = param.microbatch_grad.defined() ? param.microbatch_grad.add_(rounded) : rounded;
}

void accumulate_fp16(Param& param, const std::function<void(at::Tensor& main_grad, bool adds)>& put) {
  at::Tensor one_call = at::empty_like(param.main_grad);
  put(one_call, false);
  add_fp16(param, one_call);
}

// For fp16, the last use of a microbatch adds the microbatch's sum to main_grad.
void end_use(Param& param) {
  if (++param.microbatch_uses == param.uses_per_microbatch) {
    param.synchronize();
    if (param.microbatch_grad.defined()) {
      param.zero_uninitialized();
      param.main_grad.add_(param.microbatch_grad);
    }
    param.microbatch_grad.reset();
    param.microbatch_uses = 0;
  }
  if (param.notifies) param.notify_use();
}

}  // namespace

void Param::notify_before_use() const {
  for (const auto& [name, call] : before_use) call();
}

void Param::notify_use() const {
  for (auto entry = on_use.rbegin(); entry != on_use.rend(); ++entry) entry->listener();
}

void Param::begin_backward(bool enabled) {
  backward_calls = 0;
  notifies = enabled;
}

void Param::zero_uninitialized() {
  if (std::exchange(uninitialized, false)) main_grad.zero_();
}

void Param::accumulate(const std::function<void(at::Tensor& main_grad)>& add) {
  accumulate_or_write([add](at::Tensor& sums, bool adds) {
    if (!adds) sums.zero_();
    add(sums);
  });
}

void Param::accumulate_or_write(const std::function<void(at::Tensor& main_grad, bool adds)>& put) {
  if (frozen) return;
  if (deferred != nullptr) {
    deferred->push_back([this, put] { accumulate_or_write(put); });
    return;
  }
  if (notifies) notify_before_use();
  if (scalar_type() == at::kHalf) {
    accumulate_fp16(*this, put);
  } else {
    put(main_grad, !std::exchange(uninitialized, false));
  }
  if (++backward_calls % calls_per_use == 0) end_use(*this);
}

void Param::accumulate_async(const std::function<comm::Handle(const at::Tensor& sums)>& start, at::Tensor held) {
  if (frozen) return;
  MPX_ASSERT(deferred == nullptr, "the gradients of ", name, " are deferred");
  MPX_ASSERT(is_synchronized(), "the gradients of ", name, " are not synchronized");
  if (notifies) notify_before_use();
  at::Tensor sum;
  if (scalar_type() == at::kHalf) sum = at::zeros_like(main_grad);
  else zero_uninitialized();
  pending_grad = {start(sum.defined() ? sum : main_grad), std::move(held), sum};
}

void Param::synchronize() {
  if (!pending_grad) return;
  pending_grad->handle.wait();
  if (pending_grad->sums.defined()) add_fp16(*this, pending_grad->sums);
  pending_grad.reset();
}

void Param::end_backward(int times) {
  MPX_ASSERT(backward_calls <= times * calls_per_use, "parameter ", name, " got ", backward_calls, " gradients from ",
             times, " uses of ", calls_per_use, " each");
  for (int uses = backward_calls / calls_per_use; uses < times; ++uses) {
    if (notifies) notify_before_use();
    end_use(*this);
  }
  if (!notifies) synchronize();
  notifies = true;
}

}  // namespace metroplex::nn

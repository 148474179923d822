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
  if (++param.uses_of_microbatch == param.uses_per_microbatch) {
    param.settle();
    if (param.microbatch_grad.defined()) {
      param.zero_fresh();
      param.main_grad.add_(param.microbatch_grad);
    }
    param.microbatch_grad.reset();
    param.uses_of_microbatch = 0;
  }
  if (param.tells) param.tell_use();
}

}  // namespace

void Param::tell_before_use() const {
  for (const auto& [name, call] : before_use) call();
}

void Param::tell_use() const {
  for (auto entry = on_use.rbegin(); entry != on_use.rend(); ++entry) entry->listener();
}

void Param::begin_backward(bool its_tells) {
  calls_of_backward = 0;
  tells = its_tells;
}

void Param::zero_fresh() {
  if (std::exchange(fresh, false)) main_grad.zero_();
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
  if (tells) tell_before_use();
  if (scalar_type() == at::kHalf) {
    accumulate_fp16(*this, put);
  } else {
    put(main_grad, !std::exchange(fresh, false));
  }
  if (++calls_of_backward % calls_per_use == 0) end_use(*this);
}

void Param::accumulate_later(const std::function<comm::Handle(const at::Tensor& sums)>& start, at::Tensor held) {
  if (frozen) return;
  MPX_ASSERT(deferred == nullptr, "the gradients of ", name, " are deferred");
  MPX_ASSERT(settled(), "the gradients of ", name, " are not synchronized");
  if (tells) tell_before_use();
  at::Tensor apart;
  if (scalar_type() == at::kHalf) apart = at::zeros_like(main_grad);
  else zero_fresh();
  arriving = {start(apart.defined() ? apart : main_grad), std::move(held), apart};
}

void Param::settle() {
  if (!arriving) return;
  arriving->handle.wait();
  if (arriving->sums.defined()) add_fp16(*this, arriving->sums);
  arriving.reset();
}

void Param::end_backward(int times) {
  MPX_ASSERT(calls_of_backward <= times * calls_per_use, "parameter ", name, " got ", calls_of_backward,
             " gradients from ", times, " uses of ", calls_per_use, " each");
  for (int uses = calls_of_backward / calls_per_use; uses < times; ++uses) {
    if (tells) tell_before_use();
    end_use(*this);
  }
  if (!tells) settle();
  tells = true;
}

}  // namespace metroplex::nn

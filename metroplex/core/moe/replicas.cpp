#include "moe/replicas.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "moe/load_meter.h"

namespace metroplex::moe {

namespace {

at::Tensor empty_slots(const nn::Param& home, int64_t slots) {
  std::vector<int64_t> shape = home.data.sizes().vec();
  shape[0] = slots;
  return at::empty(shape, home.data.options());
}

}  // namespace

// Starts the transfers in the order of use.
ClonesUnderWay::ClonesUnderWay(const HomeWeights& home, const at::Tensor& owners, int64_t slots,
                               const comm::Group& group) {
  const at::NoGradGuard no_grad;
  const auto start = [&](const nn::Param* param, at::Tensor& weights, comm::Handle& handle) {
    if (param == nullptr) return;
    weights = empty_slots(*param, slots);
    handle = comm::fetch_rows_async(weights, param->data, owners, group);
  };
  start(home.fc1, weights_.fc1, fc1_);
  start(home.bias1, weights_.bias1, bias1_);
  start(home.fc2, weights_.fc2, fc2_);
  start(home.bias2, weights_.bias2, bias2_);
}

void ClonesUnderWay::wait(comm::Handle& weight, comm::Handle& bias) const {
  const auto wait = [&] { weight.wait(), bias.wait(); };
  if (target_ != nullptr) timed(*target_, sum_, wait);
  else wait();
}

// Starts the transfers in the order of use in backward.
void ReplicasAgain::start() {
  start(fc2_);
  start(fc1_);
}

void ReplicasAgain::start(One& one) const {
  if (one.slots.defined()) return;
  const at::NoGradGuard no_grad;
  one.slots = empty_slots(*one.home, slots_);
  one.handle = comm::fetch_rows_async(one.slots, one.home->data, owners_, group_);
}

at::Tensor ReplicasAgain::finish(One& one) const {
  start(one);
  one.handle.wait();
  return std::exchange(one.slots, {});
}

void bring_home(nn::Param& home, const at::Tensor& gradients, const at::Tensor& owners, const comm::Group& group) {
  home.accumulate_async(
      [&](const at::Tensor& sums) { return comm::return_rows_async(sums, gradients, owners, group); }, gradients);
}

}  // namespace metroplex::moe

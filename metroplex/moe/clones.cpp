#include "moe/clones.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "nn/autograd_node.h"

namespace metroplex::moe {

namespace {

at::Tensor empty_slots(const nn::Param& home, int64_t slots) {
  std::vector<int64_t> shape = home.data.sizes().vec();
  shape[0] = slots;
  return at::empty(shape, home.data.options());
}

}  // namespace

ClonesUnderWay::ClonesUnderWay(const HomeWeights& home, const at::Tensor& owners, int64_t slots,
                               const comm::Group& group)
    : owners_(owners), group_(&group) {
  const at::NoGradGuard no_grad;
  const auto start = [&](nn::Param* param) {
    if (param == nullptr) return One{};
    One one{param, empty_slots(*param, slots), {}};
    one.handle = comm::fetch_rows_async(one.slots, param->data, owners_, *group_);
    return one;
  };
  fc1_ = start(home.fc1);
  fc2_ = start(home.fc2);
  bias1_ = start(home.bias1);
  bias2_ = start(home.bias2);
}

CloneWeights ClonesUnderWay::finish() { return {finish(fc1_), finish(fc2_), finish(bias1_), finish(bias2_)}; }

at::Tensor ClonesUnderWay::finish(One& one) const {
  if (one.param == nullptr) return {};
  one.handle.wait();
  const at::Tensor out =
      nn::attach(one.slots, {},
                 [param = one.param, owners = owners_, group = group_](const at::Tensor& gradient) -> nn::Gradients {
                   const at::NoGradGuard no_grad;
                   const at::Tensor of_clones = gradient.contiguous();
                   param->accumulate([&](at::Tensor& main_grad) {
                     comm::return_rows_async(main_grad, of_clones.to(main_grad.scalar_type()), owners, *group).wait();
                   });
                   return {};
                 });
  nn::keep_gradient_type(out);
  return out;
}

at::Tensor fetched_clones(const nn::Param& home, const at::Tensor& owners, int64_t slots, const comm::Group& group) {
  const at::NoGradGuard no_grad;
  const at::Tensor out = empty_slots(home, slots);
  comm::fetch_rows_async(out, home.data, owners, group).wait();
  return out;
}

}  // namespace metroplex::moe

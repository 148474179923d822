// Sends clones of experts by plain collectives, as somebody told it beforehand: everybody gets the weights of all
// ranks and keeps those of its slots; in backward everybody gets the gradients of all slots, and homes add theirs.
// Rows travel by the dispatchers that ship.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "nn/autograd_node.h"
#include "comm/collectives.h"
#include "moe/dispatcher.h"

namespace metroplex::test {

struct CloneOf {
  int64_t expert;
  int ep_rank;  // where the clone is
  int64_t slot;
};

class CloningDispatcher final : public moe::Dispatcher {
 public:
  // spec.experts has slots, and spec.home the weights. `rows`: who moves the rows.
  CloningDispatcher(const moe::DispatcherSpec& spec, config::TokenDispatcher rows, std::vector<CloneOf> clones)
      : Dispatcher(spec), rows_(moe::make_dispatcher(rows, spec)), clones_(std::move(clones)) {}

  // Of the assignments to an expert with n clones each holder gets every (n + 1)-th.
  moe::DispatchPlan plan(const at::Tensor& experts) const override {
    const int64_t groups = spec_.local_groups(), slots = spec_.experts.slots, home = groups - slots;
    const at::Tensor nothing = experts.lt(0), number = at::arange(experts.size(0), experts.options()).unsqueeze(1);
    at::Tensor columns = at::div(experts, home, "floor") * groups + experts.remainder(home);
    for (const CloneOf& clone : clones_) {
      int64_t before = 0, all = 0;
      for (const CloneOf& other : clones_) {
        if (other.expert != clone.expert) continue;
        before += other.ep_rank * slots + other.slot < clone.ep_rank * slots + clone.slot;
        ++all;
      }
      const at::Tensor moves = experts.eq(clone.expert).logical_and(number.remainder(all + 1).eq(before));
      columns = at::where(moves, clone.ep_rank * groups + home + clone.slot, columns);
    }
    return rows_->plan(at::where(nothing, -1, columns));
  }

  moe::DispatchUnderWay start_dispatch(const at::Tensor& x, const at::Tensor& probs,
                                       moe::DispatchPlan plan) const override {
    return rows_->start_dispatch(x, probs, std::move(plan));
  }

  moe::Dispatched finish_dispatch(moe::DispatchUnderWay under_way) const override {
    moe::Dispatched out = rows_->finish_dispatch(std::move(under_way));
    const moe::HomeWeights home = spec_.home->home();
    out.clones = {sent(home.fc1), sent(home.fc2), sent(home.bias1), sent(home.bias2)};
    return out;
  }

  at::Tensor combine(const at::Tensor& y, const moe::CombinePlan& back) const override {
    return rows_->combine(y, back);
  }

 private:
  // Of all ranks; that of a clone's part of etp.
  at::Tensor of_rank(const at::Tensor& all, int64_t ep_rank, int64_t i, int64_t each) const {
    return all[(ep_rank * spec_.experts.etp + spec_.experts.etp_rank()) * each + i];
  }

  // [slots, ...]: NaN where nobody sends one.
  at::Tensor sent(nn::Param* param) const {
    if (param == nullptr) return {};
    const int64_t home = spec_.local_groups() - spec_.experts.slots;
    at::Tensor slots;
    {
      const at::NoGradGuard no_grad;
      std::vector<int64_t> sizes = param->data.sizes().vec();
      sizes[0] = spec_.experts.slots;
      slots = at::full(sizes, std::numeric_limits<double>::quiet_NaN(), param->data.options());
      const at::Tensor all = comm::all_gather(param->data, 0, spec_.experts.experts);
      for (const CloneOf& clone : clones_) {
        if (clone.ep_rank != spec_.experts.ep_rank()) continue;
        slots[clone.slot].copy_(of_rank(all, clone.expert / home, clone.expert % home, home));
      }
    }
    const at::Tensor out = nn::attach(slots, {}, [this, param](const at::Tensor& gradient) -> nn::Gradients {
      const at::NoGradGuard no_grad;
      bring_home(*param, comm::all_gather(gradient.contiguous(), 0, spec_.experts.experts));
      return {};
    });
    nn::keep_gradient_type(out);
    return out;
  }

  void bring_home(nn::Param& param, const at::Tensor& all) const {
    const int64_t slots = spec_.experts.slots, home = spec_.local_groups() - slots;
    param.accumulate([&](at::Tensor& main_grad) {
      EXPECT_EQ(all.scalar_type(), main_grad.scalar_type());
      for (const CloneOf& clone : clones_) {
        if (clone.expert / home != spec_.experts.ep_rank()) continue;
        main_grad[clone.expert % home].add_(of_rank(all, clone.ep_rank, clone.slot, slots));
      }
    });
  }

  std::unique_ptr<moe::Dispatcher> rows_;
  std::vector<CloneOf> clones_;
};

}  // namespace metroplex::test

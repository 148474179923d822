// Weights of clones on their way from the homes of their experts, and gradients of clones on their way back, where
// they are added to the main_grad of the home by ascending slot.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "comm/collectives.h"
#include "comm/group.h"
#include "cuda/launch_point.h"
#include "nn/param.h"

namespace metroplex::moe {

// The parameters of the experts at home; biases are null where the model has none.
struct HomeWeights {
  nn::Param *fc1 = nullptr, *fc2 = nullptr, *bias1 = nullptr, *bias2 = nullptr;
};

// Of the parameters of a layer, [slots, ...] each in the place of [home experts, ...]. Contiguous; a slot without
// rows is never read. Biases are undefined where the model has none, and all are on a rank without slots.
struct CloneWeights {
  at::Tensor fc1, fc2, bias1, bias2;
  bool defined() const { return fc1.defined(); }
};

class ClonesUnderWay {
 public:
  ClonesUnderWay() = default;
  // owners [members * slots] int32: of each slot of each member of `group` the expert, -1: none. What is null in
  // `home` does not travel.
  ClonesUnderWay(const HomeWeights& home, const at::Tensor& owners, int64_t slots, const comm::Group& group);
  bool defined() const { return weights_.defined(); }
  // Adds the time of the joins to `sum` (timed() of load_meter.h). Both outlive it.
  void count_time(const cuda::Target& target, double* sum) { target_ = &target, sum_ = sum; }
  // Not to be read before their join. What is in a slot without owner is unspecified.
  const CloneWeights& weights() const { return weights_; }
  // Each waits for a weight and its bias; once they are there, it does nothing. All ranks of the group join in the
  // same order.
  void join_fc1() { wait(fc1_, bias1_); }
  void join_fc2() { wait(fc2_, bias2_); }
  void join() { join_fc1(), join_fc2(); }

 private:
  void wait(comm::Handle& weight, comm::Handle& bias) const;

  const cuda::Target* target_ = nullptr;
  double* sum_ = nullptr;
  CloneWeights weights_;
  comm::Handle fc1_, fc2_, bias1_, bias2_;
};

// The weights once more, for backward, without biases: on their way from start() on, or from when one is asked for.
class ClonesAgain {
 public:
  // `home` and `group` outlive it.
  ClonesAgain(const HomeWeights& home, at::Tensor owners, int64_t slots, const comm::Group& group)
      : fc1_{home.fc1}, fc2_{home.fc2}, owners_(std::move(owners)), slots_(slots), group_(group) {}
  void start();
  // Each once.
  at::Tensor fc1() { return finish(fc1_); }
  at::Tensor fc2() { return finish(fc2_); }

 private:
  struct One {
    const nn::Param* home;
    at::Tensor slots{};  // defined while it is under way
    comm::Handle handle{};
  };
  void start(One& one) const;
  at::Tensor finish(One& one) const;

  One fc1_, fc2_;
  at::Tensor owners_;
  int64_t slots_;
  const comm::Group& group_;
};

// What a forward of the experts needs to have clones, and its backward.
struct Clones {
  CloneWeights weights;
  ClonesUnderWay* under_way = nullptr;      // whose weights these are, until forward returns; null: all are there
  std::shared_ptr<ClonesAgain> again = {};  // null: backward keeps the weights
  // Gets the gradients of the clones of a parameter, what its home has to add: all of each slot, zeros without rows,
  // in the type in which the home's main_grad is accumulated. Called in backward, once a parameter.
  std::function<void(nn::Param& home, const at::Tensor& gradients)> bring_home = {};
};

// Clones::bring_home: on their way when it returns (nn::Param::accumulate_later). `group` outlives the last use.
void bring_home(nn::Param& home, const at::Tensor& gradients, const at::Tensor& owners, const comm::Group& group);

}  // namespace metroplex::moe

// Transfer of weights from the owners of experts to their replicas (ECHO), and of replica gradients back. The owner
// adds them to its main_grad in ascending order of replica slot.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "comm/collectives.h"
#include "comm/group.h"
#include "device/launch_point.h"
#include "nn/param.h"

namespace metroplex::moe {

// Parameters of the local experts; biases are null if the model has none.
struct HomeWeights {
  nn::Param *fc1 = nullptr, *fc2 = nullptr, *bias1 = nullptr, *bias2 = nullptr;
};

// Replica weights of a layer's parameters, [slots, ...] like [local experts, ...] of the parameter. They are
// contiguous; a slot without rows is never read. Biases are undefined if the model has none; all are undefined on a
// rank without slots.
struct ReplicaWeights {
  at::Tensor fc1, fc2, bias1, bias2;
  bool defined() const { return fc1.defined(); }
};

class ClonesUnderWay {
 public:
  ClonesUnderWay() = default;
  // owners [members * slots] int32: the expert of each slot of each member of `group`, -1: none. Null parameters in
  // `home` are not transferred.
  ClonesUnderWay(const HomeWeights& home, const at::Tensor& owners, int64_t slots, const comm::Group& group);
  bool defined() const { return weights_.defined(); }
  // Adds the time of the joins to `sum` (timed() of load_meter.h). Both must outlive this object.
  void count_time(const device::Target& target, double* sum) { target_ = &target, sum_ = sum; }
  // Must not be read before their join. The content of a slot without owner is unspecified.
  const ReplicaWeights& weights() const { return weights_; }
  // Each waits for a weight and its bias; further calls are no-ops. All ranks of the group join in the same order.
  void join_fc1() { wait(fc1_, bias1_); }
  void join_fc2() { wait(fc2_, bias2_); }
  void join() { join_fc1(), join_fc2(); }

 private:
  void wait(comm::Handle& weight, comm::Handle& bias) const;

  const device::Target* target_ = nullptr;
  double* sum_ = nullptr;
  ReplicaWeights weights_;
  comm::Handle fc1_, fc2_, bias1_, bias2_;
};

// Fetches the weights again for backward, without biases. The transfer starts in start(), or on the first request.
class ReplicasAgain {
 public:
  // `home` and `group` must outlive this object.
  ReplicasAgain(const HomeWeights& home, at::Tensor owners, int64_t slots, const comm::Group& group)
      : fc1_{home.fc1}, fc2_{home.fc2}, owners_(std::move(owners)), slots_(slots), group_(group) {}
  void start();
  // Each may be called once.
  at::Tensor fc1() { return finish(fc1_); }
  at::Tensor fc2() { return finish(fc2_); }

 private:
  struct One {
    const nn::Param* home;
    at::Tensor slots{};  // defined while in flight
    comm::Handle handle{};
  };
  void start(One& one) const;
  at::Tensor finish(One& one) const;

  One fc1_, fc2_;
  at::Tensor owners_;
  int64_t slots_;
  const comm::Group& group_;
};

// Inputs of the experts' forward and backward for replicas.
struct Replicas {
  ReplicaWeights weights;
  ClonesUnderWay* under_way = nullptr;  // these weights in flight, until forward returns; null: all have arrived
  std::shared_ptr<ReplicasAgain> again = {};  // null: backward uses saved weights
  // Receives the gradients of a parameter's replicas, to be added by the owner. Every slot is included, with zeros
  // for slots without rows, in the type in which the owner's main_grad is accumulated. Backward calls it once per
  // parameter.
  std::function<void(nn::Param& home, const at::Tensor& gradients)> bring_home = {};
};

// Implements Replicas::bring_home: the transfer is in flight when it returns (nn::Param::accumulate_async). `group`
// must outlive the last use.
void bring_home(nn::Param& home, const at::Tensor& gradients, const at::Tensor& owners, const comm::Group& group);

}  // namespace metroplex::moe

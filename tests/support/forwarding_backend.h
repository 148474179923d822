// A backend that forwards every call to another one. Tests override the calls that they observe or delay.
#pragma once

#include <utility>
#include <vector>

#include "comm/backends/backend.h"

namespace metroplex::test {

class ForwardingBackend : public comm::GroupBackend {
 public:
  explicit ForwardingBackend(comm::GroupBackend& inner) : inner_(inner) {}
  comm::PendingPtr all_reduce(at::Tensor x, comm::ReduceOp op) override { return inner_.all_reduce(x, op); }
  comm::PendingPtr all_gather(at::Tensor out, at::Tensor in) override { return inner_.all_gather(out, in); }
  comm::PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, comm::ReduceOp op) override {
    return inner_.reduce_scatter(out, in, op);
  }
  comm::PendingPtr broadcast(at::Tensor x, int root) override { return inner_.broadcast(x, root); }
  comm::PendingPtr all_to_all(at::Tensor out, at::Tensor in, std::vector<int64_t> out_splits,
                              std::vector<int64_t> in_splits) override {
    return inner_.all_to_all(out, in, std::move(out_splits), std::move(in_splits));
  }
  comm::PendingPtr batch_p2p(std::vector<comm::P2pOp> ops) override { return inner_.batch_p2p(std::move(ops)); }
  void barrier() override { inner_.barrier(); }
  comm::PendingPtr gather(at::Tensor out, at::Tensor in, int index, int size) override {
    return inner_.gather(out, in, index, size);
  }

 protected:
  comm::GroupBackend& inner_;
};

}  // namespace metroplex::test

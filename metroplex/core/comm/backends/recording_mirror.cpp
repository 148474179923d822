#include "comm/backends/recording.h"

#include <ATen/core/Tensor.h>

#include <utility>

namespace metroplex::comm {
namespace {

// Reports the wait for a call, if a recorder is present.
class MirrorPending final : public Pending {
 public:
  MirrorPending(std::string group, device::Recorder& recorder) : group_(std::move(group)), recorder_(recorder) {}
  void wait() override {
    device::Operation wait{"wait", group_, {}, {}, {}, [] {}};
    wait.work = this;
    recorder_.run(std::move(wait));
  }

 private:
  std::string group_;
  device::Recorder& recorder_;
};

class MirrorBackend final : public GroupBackend {
 public:
  MirrorBackend(std::string group, int size, device::Recorder* recorder)
      : group_(std::move(group)), size_(size), recorder_(recorder) {}

  PendingPtr all_reduce(at::Tensor tensor, ReduceOp /*op*/) override {
    return tell("all_reduce", {tensor}, {tensor});
  }
  PendingPtr all_gather(at::Tensor out, at::Tensor in) override {
    if (!out.is_meta()) out.view({size_, -1}).copy_(in.view({1, -1}));
    return tell("all_gather", {in}, {out});
  }
  PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp /*op*/) override {
    if (!out.is_meta()) out.view(-1).copy_(in.view({size_, -1})[0]);
    return tell("reduce_scatter", {in}, {out});
  }
  PendingPtr broadcast(at::Tensor tensor, int /*root*/) override { return tell("broadcast", {tensor}, {tensor}); }
  PendingPtr all_to_all(at::Tensor out, at::Tensor in, std::vector<int64_t> /*out_splits*/,
                        std::vector<int64_t> /*in_splits*/) override {
    return tell("all_to_all", {in}, {out});
  }
  // As a recording backend, without the flag, which is not transferred.
  PendingPtr exchange_rows(CountedRows out, CountedRows in, int64_t /*capacity*/, at::Tensor /*overflow*/) override {
    return tell("exchange_rows", {in.rows, in.counts}, {out.rows, out.counts});
  }
  PendingPtr fetch_rows(at::Tensor out, at::Tensor in, at::Tensor owners, int /*index*/) override {
    return tell("fetch_rows", {in, owners}, {out});
  }
  PendingPtr return_rows(at::Tensor sum, at::Tensor in, at::Tensor owners, int /*index*/) override {
    return tell("return_rows", {sum, in, owners}, {sum});
  }
  PendingPtr batch_p2p(std::vector<P2pOp> ops) override {
    const PendingPtr pending = make_pending();
    for (const P2pOp& op : ops)
      op.is_send ? report("send", {op.tensor}, {}, pending) : report("recv", {}, {op.tensor}, pending);
    return pending;
  }
  void barrier() override { report("barrier", {}, {}, nullptr); }

 private:
  PendingPtr make_pending() const {
    return recorder_ == nullptr ? nullptr : std::make_shared<MirrorPending>(group_, *recorder_);
  }
  PendingPtr tell(const char* name, std::vector<at::Tensor> reads, std::vector<at::Tensor> writes) {
    PendingPtr pending = make_pending();
    report(name, std::move(reads), std::move(writes), pending);
    return pending;
  }
  void report(const char* name, std::vector<at::Tensor> reads, std::vector<at::Tensor> writes,
              const PendingPtr& pending) {
    if (recorder_ == nullptr) return;
    device::Operation operation{name, group_, std::move(reads), std::move(writes), {}, [] {}};
    operation.work = pending.get();
    recorder_->run(std::move(operation));
  }

  std::string group_;
  int64_t size_;
  device::Recorder* recorder_;
};

}  // namespace

std::shared_ptr<GroupBackend> make_mirror_backend(std::string group, int size, device::Recorder* recorder) {
  return std::make_shared<MirrorBackend>(std::move(group), size, recorder);
}

}  // namespace metroplex::comm

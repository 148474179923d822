#include "comm/backends/nccl.h"

#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <nccl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "comm/backends/backend.h"
#include "comm/backends/gloo_state.h"

// ProcessGroupNCCL::Options holds an ncclConfig_t by value, so another version of nccl.h would corrupt it silently.
static_assert(NCCL_VERSION_CODE == 22809, "nccl.h must be the one that libtorch_cuda was built with");

namespace metroplex::comm {
namespace {

using Communicator = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

c10d::ReduceOp reduce_op(ReduceOp op) { return op == ReduceOp::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX; }

class WorkPending final : public Pending {
 public:
  WorkPending(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors)
      : work_(std::move(work)), tensors_(std::move(tensors)) {}
  // The current stream waits; the host does not.
  void wait() override {
    if (work_) work_->wait();
    work_.reset();
    tensors_.clear();
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> tensors_;  // keep their memory allocated until the caller's stream has waited
};

PendingPtr pending(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors) {
  return std::make_shared<WorkPending>(std::move(work), std::move(tensors));
}

class BothPending final : public Pending {
 public:
  void add(PendingPtr pending) { pending_.push_back(std::move(pending)); }
  void wait() override {
    for (const PendingPtr& part : pending_) {
      if (part) part->wait();
    }
    pending_.clear();
  }

 private:
  std::vector<PendingPtr> pending_;
};

// The communicators of one group. `backward` serves p2p channel 1. It is null if the two channels never join the same
// pair of ranks.
struct Communicators {
  Communicator forward, backward;
};

// Creates communicators at the first call with GPU tensors. Each needs GPU memory and a rendezvous of its ranks,
// and a run uses only a few groups of its layout. All ranks of a group must make its first call, and none may wait
// in another group for a rank that is in this call.
class NcclBackend final : public GroupBackend {
 public:
  NcclBackend(std::function<Communicators()> make, std::shared_ptr<GroupBackend> host)
      : make_(std::move(make)), host_(std::move(host)) {}

  PendingPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    if (tensor.is_cpu()) return host_->all_reduce(std::move(tensor), op);
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(op);
    std::vector<at::Tensor> list{tensor};
    return pending(nccl().allreduce(list, options), list);
  }
  PendingPtr all_gather(at::Tensor out, at::Tensor in) override {
    if (in.is_cpu()) return host_->all_gather(std::move(out), std::move(in));
    return pending(nccl()._allgather_base(out, in), {out, in});
  }
  PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    if (in.is_cpu()) return host_->reduce_scatter(std::move(out), std::move(in), op);
    c10d::ReduceScatterOptions options;
    options.reduceOp = reduce_op(op);
    return pending(nccl()._reduce_scatter_base(out, in, options), {out, in});
  }
  PendingPtr broadcast(at::Tensor tensor, int root) override {
    if (tensor.is_cpu()) return host_->broadcast(std::move(tensor), root);
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> list{tensor};
    return pending(nccl().broadcast(list, options), list);
  }
  PendingPtr all_to_all(at::Tensor out, at::Tensor in, std::vector<int64_t> out_splits,
                        std::vector<int64_t> in_splits) override {
    if (in.is_cpu())
      return host_->all_to_all(std::move(out), std::move(in), std::move(out_splits), std::move(in_splits));
    return pending(nccl().alltoall_base(out, in, out_splits, in_splits), {out, in});
  }
  PendingPtr batch_p2p(std::vector<P2pOp> ops) override {
    if (!ops.empty() && ops.front().tensor.is_cpu()) return host_->batch_p2p(std::move(ops));
    auto both = std::make_shared<BothPending>();
    std::vector<P2pOp> forward, backward;
    const bool two = communicators().backward != nullptr;
    for (P2pOp& op : ops) (op.channel == 1 && two ? backward : forward).push_back(std::move(op));
    if (!forward.empty()) both->add(issue_batch(*communicators().forward, std::move(forward)));
    if (!backward.empty()) both->add(issue_batch(*communicators().backward, std::move(backward)));
    return both;
  }
  PendingPtr gather(at::Tensor out, at::Tensor in, int index, int size) override {
    if (in.is_cpu()) return host_->gather(std::move(out), std::move(in), index, size);
    return GroupBackend::gather(std::move(out), std::move(in), index, size);
  }
  void barrier() override { host_->barrier(); }

 private:
  // Returns a tensor on the same memory that the caching allocator does not track. ProcessGroupNCCL::pointToPoint
  // records its stream on every tensor, and memory with a recorded stream stays reserved until the end of a graph
  // capture. The tensors in WorkPending keep the memory allocated.
  static at::Tensor alias(const at::Tensor& x) {
    return at::for_blob(x.data_ptr(), x.sizes()).options(x.options()).target_device(x.device()).make_tensor();
  }

  static PendingPtr issue_batch(c10d::ProcessGroupNCCL& nccl, std::vector<P2pOp> ops) {
    std::vector<at::Tensor> tensors;
    nccl.startCoalescing();
    try {
      for (const P2pOp& op : ops) {
        tensors.push_back(op.tensor);
        std::vector<at::Tensor> list{alias(op.tensor)};
        if (op.is_send) nccl.send(list, op.peer, 0);
        else nccl.recv(list, op.peer, 0);
      }
    } catch (...) {  // otherwise NCCL would add the next calls to an unfinished batch
      try {
        nccl.endCoalescing();
      } catch (const std::exception&) {}  // the first error is more specific
      throw;
    }
    return pending(nccl.endCoalescing(), std::move(tensors));
  }

  const Communicators& communicators() {
    if (!made_.forward) made_ = make_();
    return made_;
  }
  c10d::ProcessGroupNCCL& nccl() { return *communicators().forward; }

  std::function<Communicators()> make_;
  Communicators made_;
  std::shared_ptr<GroupBackend> host_;
};

class Context final : public NcclContext {
 public:
  Context(GlooContext& control, int device_index, std::chrono::milliseconds timeout)
      : control_(control), device_(at::kCUDA, static_cast<c10::DeviceIndex>(device_index)), timeout_(timeout) {
    const int num_devices = c10::cuda::device_count();
    MPX_CHECK(device_index >= 0 && device_index < num_devices, "comm", "nccl needs GPU ", device_index,
              " for this rank, but there are ", num_devices,
              "; start one rank per GPU, or use the backend gloo or threads");
    int version = 0;
    ncclGetVersion(&version);
    MPX_CHECK(version == NCCL_VERSION_CODE, "comm", "the loaded NCCL library is ", version,
              ", but this program was built for ", NCCL_VERSION_CODE,
              "; remove the other one from LD_LIBRARY_PATH or LD_PRELOAD");
    c10::cuda::set_device(device_.index());
  }

  std::shared_ptr<GroupBackend> backend(const GroupSpec& spec) override {
    std::shared_ptr<GroupBackend> host = control_.backend(spec);
    const std::string key = group_key(spec);
    const bool two = spec.ranks.size() == 2 && spec.purpose == Purpose::pipeline;
    const auto make_both = [this, key, ranks = spec.ranks, two] {
      return Communicators{make(key, ranks), two ? make(key + "/backward", ranks) : nullptr};
    };
    return std::make_shared<NcclBackend>(make_both, std::move(host));
  }

  void shutdown() override {
    for (const Communicator& communicator : communicators_) communicator->shutdown();
    communicators_.clear();
  }

 private:
  int index_in(const std::vector<int>& ranks) const {
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), control_.state().options().rank) - ranks.begin());
  }

  Communicator make(const std::string& key, const std::vector<int>& ranks) {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/false);
    options->timeout = timeout_;
    options->group_name = key;
    auto communicator = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        c10::make_intrusive<c10d::PrefixStore>("nccl/" + key, control_.state().store()), index_in(ranks),
        static_cast<int>(ranks.size()), options);
    communicator->setBoundDeviceId(device_);
    communicator->eagerConnectSingleDevice(device_);
    communicators_.push_back(communicator);
    return communicator;
  }

  GlooContext& control_;
  at::Device device_;
  std::chrono::milliseconds timeout_;
  std::vector<Communicator> communicators_;
};

}  // namespace

std::shared_ptr<NcclContext> make_nccl_context(GlooContext& control, int device_index,
                                               std::chrono::milliseconds timeout) {
  return std::make_shared<Context>(control, device_index, timeout);
}

}  // namespace metroplex::comm

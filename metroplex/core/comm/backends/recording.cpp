#include "comm/backends/recording.h"

#include <functional>
#include <utility>
#include <vector>

namespace metroplex::comm {
namespace {

using Tensors = std::vector<at::Tensor>;
using Scalars = std::vector<device::HostScalar>;

// The pending operation of the latest run; a replay starts it again.
using SharedPending = std::shared_ptr<PendingPtr>;

class RecordedPending final : public Pending {
 public:
  RecordedPending(std::string group, device::Recorder& recorder, SharedPending current, Tensors reads, Tensors writes)
      : group_(std::move(group)),
        recorder_(recorder),
        current_(std::move(current)),
        reads_(std::move(reads)),
        writes_(std::move(writes)) {}
  void wait() override {
    device::Operation wait{"wait", group_, reads_, writes_, {}, [current = current_] {
                             if (*current) (*current)->wait();
                             current->reset();
                           }};
    wait.work = current_.get();
    recorder_.run(std::move(wait));
  }

 private:
  std::string group_;
  device::Recorder& recorder_;
  SharedPending current_;
  Tensors reads_, writes_;
};

class ObservedPending final : public Pending {
 public:
  ObservedPending(const std::string& group, device::Recorder& recorder, PendingPtr started)
      : group_(group), recorder_(recorder), started_(std::move(started)) {}
  void wait() override {
    device::Operation wait{"wait", group_, {}, {}, {}, [this] { started_->wait(); }};
    wait.work = started_.get();
    recorder_.run(std::move(wait));
  }

 private:
  std::string group_;
  device::Recorder& recorder_;
  PendingPtr started_;
};

class RecordingBackend final : public GroupBackend {
 public:
  RecordingBackend(std::string group, device::Recorder& recorder, std::shared_ptr<GroupBackend> inner, bool replays)
      : group_(std::move(group)), recorder_(recorder), inner_(std::move(inner)), replays_(replays) {}

  PendingPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    return issue({"all_reduce", group_, {tensor}, {tensor}, {{"op", static_cast<int>(op)}}, {}}, {tensor},
                 [op, b = inner_](const Tensors& x) { return b->all_reduce(x[0], op); });
  }
  PendingPtr all_gather(at::Tensor out, at::Tensor in) override {
    return issue({"all_gather", group_, {in}, {out}, {}, {}}, {out, in},
                 [b = inner_](const Tensors& x) { return b->all_gather(x[0], x[1]); });
  }
  PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    return issue({"reduce_scatter", group_, {in}, {out}, {{"op", static_cast<int>(op)}}, {}}, {out, in},
                 [op, b = inner_](const Tensors& x) { return b->reduce_scatter(x[0], x[1], op); });
  }
  PendingPtr broadcast(at::Tensor tensor, int root) override {
    return issue({"broadcast", group_, {tensor}, {tensor}, {{"root", root}}, {}}, {tensor},
                 [root, b = inner_](const Tensors& x) { return b->broadcast(x[0], root); });
  }
  PendingPtr all_to_all(at::Tensor out, at::Tensor in, std::vector<int64_t> out_splits,
                        std::vector<int64_t> in_splits) override {
    Scalars scalars;
    for (const int64_t rows : out_splits) scalars.emplace_back("out_rows", rows);
    for (const int64_t rows : in_splits) scalars.emplace_back("in_rows", rows);
    return issue({"all_to_all", group_, {in}, {out}, std::move(scalars), {}}, {out, in},
                 [out_splits, in_splits, b = inner_](const Tensors& x) {
                   return b->all_to_all(x[0], x[1], out_splits, in_splits);
                 });
  }
  PendingPtr exchange_rows(CountedRows out, CountedRows in, int64_t capacity, at::Tensor overflow) override {
    return issue(
        {"exchange_rows", group_, {in.rows, in.counts}, {out.rows, out.counts}, {{"capacity", capacity}}, {}},
        {out.rows, out.counts, in.rows, in.counts, overflow},
        [capacity, b = inner_](const Tensors& x) {
          return b->exchange_rows({x[0], x[1]}, {x[2], x[3]}, capacity, x[4]);
        },
        {overflow});
  }
  PendingPtr fetch_rows(at::Tensor out, at::Tensor in, at::Tensor owners, int index) override {
    return issue({"fetch_rows", group_, {in, owners}, {out}, {}, {}}, {out, in, owners},
                 [index, b = inner_](const Tensors& x) { return b->fetch_rows(x[0], x[1], x[2], index); });
  }
  PendingPtr return_rows(at::Tensor sum, at::Tensor in, at::Tensor owners, int index) override {
    return issue({"return_rows", group_, {sum, in, owners}, {sum}, {}, {}}, {sum, in, owners},
                 [index, b = inner_](const Tensors& x) { return b->return_rows(x[0], x[1], x[2], index); });
  }
  PendingPtr batch_p2p(std::vector<P2pOp> ops) override {
    if (ops.empty()) return inner_->batch_p2p({});  // nothing to record
    Tensors all, reads, writes;
    Scalars scalars;
    for (P2pOp& op : ops) {
      (op.is_send ? reads : writes).push_back(op.tensor);
      scalars.emplace_back(op.is_send ? "to" : "from", op.peer);
      scalars.emplace_back("channel", op.channel);
      all.push_back(std::move(op.tensor));
    }
    return issue({"batch_p2p", group_, std::move(reads), std::move(writes), std::move(scalars), {}}, std::move(all),
                 [ops, b = inner_](const Tensors& x) {
                   std::vector<P2pOp> batch = ops;
                   for (size_t i = 0; i < batch.size(); ++i) batch[i].tensor = x[i];
                   return b->batch_p2p(std::move(batch));
                 });
  }
  PendingPtr gather(at::Tensor out, at::Tensor in, int index, int size) override {
    Tensors writes;
    if (out.defined()) writes.push_back(out);
    return issue({"gather", group_, {in}, std::move(writes), {}, {}}, {out, in},
                 [index, size, b = inner_](const Tensors& x) { return b->gather(x[0], x[1], index, size); });
  }
  void barrier() override {
    recorder_.run({"barrier", group_, {}, {}, {}, [b = inner_] { b->barrier(); }});
  }

 private:
  // `start` receives the tensors of the call; its wait() writes `written_by_wait`.
  PendingPtr issue(device::Operation operation, const Tensors& tensors,
                   const std::function<PendingPtr(const Tensors&)>& start, const Tensors& written_by_wait = {}) {
    if (!replays_) return observe(std::move(operation), tensors, start);
    const auto current = std::make_shared<PendingPtr>();
    Tensors writes = operation.writes;
    writes.insert(writes.end(), written_by_wait.begin(), written_by_wait.end());
    auto pending = std::make_shared<RecordedPending>(group_, recorder_, current, written_by_wait, std::move(writes));
    operation.work = current.get();
    const auto make_runner = [&](Tensors arguments) {
      return [current, start, arguments = std::move(arguments)] { *current = start(arguments); };
    };
    Tensors held;
    for (const at::Tensor& x : tensors) held.push_back(recorder_.held(x));
    operation.run = make_runner(tensors);
    operation.replay = make_runner(std::move(held));
    recorder_.run(std::move(operation));
    return pending;
  }

  PendingPtr observe(device::Operation operation, const Tensors& tensors,
                     const std::function<PendingPtr(const Tensors&)>& start) {
    PendingPtr started;
    operation.run = [&] { started = start(tensors); };
    recorder_.run(std::move(operation));
    return started ? std::make_shared<ObservedPending>(group_, recorder_, started) : nullptr;
  }

  std::string group_;
  device::Recorder& recorder_;
  std::shared_ptr<GroupBackend> inner_;
  bool replays_;
};

}  // namespace

std::shared_ptr<GroupBackend> make_recording_backend(std::string group, device::Recorder& recorder,
                                                     std::shared_ptr<GroupBackend> inner) {
  return std::make_shared<RecordingBackend>(std::move(group), recorder, std::move(inner), true);
}

std::shared_ptr<GroupBackend> make_observing_backend(std::string group, device::Recorder& recorder,
                                                     std::shared_ptr<GroupBackend> inner) {
  return std::make_shared<RecordingBackend>(std::move(group), recorder, std::move(inner), false);
}

}  // namespace metroplex::comm

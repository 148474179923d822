#include "comm/backends/counting.h"

namespace metroplex::comm {

void Traffic::add(const std::string& group, const std::string& operation, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Count& count = counts_[{group, operation}];
  ++count.calls;
  count.bytes += bytes;
}

Traffic::Count Traffic::of(const std::string& group, const std::string& operation) const {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find({group, operation});
  return found == counts_.end() ? Count{} : found->second;
}

std::map<std::pair<std::string, std::string>, Traffic::Count> Traffic::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Traffic::clear() {
  const std::lock_guard lock(mutex_);
  counts_.clear();
}

namespace {

int64_t num_bytes(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

class CountingBackend final : public GroupBackend {
 public:
  CountingBackend(std::string group, std::shared_ptr<Traffic> traffic, std::shared_ptr<GroupBackend> inner)
      : group_(std::move(group)), traffic_(std::move(traffic)), inner_(std::move(inner)) {}

  PendingPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    traffic_->add(group_, "all_reduce", num_bytes(tensor));
    return inner_ ? inner_->all_reduce(std::move(tensor), op) : nullptr;
  }
  PendingPtr all_gather(at::Tensor out, at::Tensor in) override {
    traffic_->add(group_, "all_gather", num_bytes(out));
    return inner_ ? inner_->all_gather(std::move(out), std::move(in)) : nullptr;
  }
  PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, ReduceOp op) override {
    traffic_->add(group_, "reduce_scatter", num_bytes(in));
    return inner_ ? inner_->reduce_scatter(std::move(out), std::move(in), op) : nullptr;
  }
  PendingPtr broadcast(at::Tensor tensor, int root) override {
    traffic_->add(group_, "broadcast", num_bytes(tensor));
    return inner_ ? inner_->broadcast(std::move(tensor), root) : nullptr;
  }
  PendingPtr all_to_all(at::Tensor out, at::Tensor in, std::vector<int64_t> out_splits,
                        std::vector<int64_t> in_splits) override {
    traffic_->add(group_, "all_to_all", num_bytes(in));
    return inner_ ? inner_->all_to_all(std::move(out), std::move(in), std::move(out_splits), std::move(in_splits))
                  : nullptr;
  }
  PendingPtr exchange_rows(CountedRows out, CountedRows in, int64_t capacity, at::Tensor overflow) override {
    int64_t row = static_cast<int64_t>(in.rows.element_size());
    for (const int64_t size : in.rows.sizes().slice(1)) row *= size;
    traffic_->add(group_, "exchange_rows", num_bytes(in.counts) + in.counts.numel() * capacity * row);
    return inner_ ? inner_->exchange_rows(std::move(out), std::move(in), capacity, std::move(overflow)) : nullptr;
  }
  PendingPtr fetch_rows(at::Tensor out, at::Tensor in, at::Tensor owners, int index) override {
    traffic_->add(group_, "fetch_rows", num_bytes(out));
    return inner_ ? inner_->fetch_rows(std::move(out), std::move(in), std::move(owners), index) : nullptr;
  }
  PendingPtr return_rows(at::Tensor sum, at::Tensor in, at::Tensor owners, int index) override {
    traffic_->add(group_, "return_rows", num_bytes(in));
    return inner_ ? inner_->return_rows(std::move(sum), std::move(in), std::move(owners), index) : nullptr;
  }
  PendingPtr batch_p2p(std::vector<P2pOp> ops) override {
    for (const P2pOp& op : ops) traffic_->add(group_, op.is_send ? "send" : "recv", num_bytes(op.tensor));
    return inner_ ? inner_->batch_p2p(std::move(ops)) : nullptr;
  }
  PendingPtr gather(at::Tensor out, at::Tensor in, int index, int size) override {
    traffic_->add(group_, "gather", num_bytes(in));
    return inner_ ? inner_->gather(std::move(out), std::move(in), index, size) : nullptr;
  }
  void barrier() override {
    traffic_->add(group_, "barrier", 0);
    if (inner_) inner_->barrier();
  }

 private:
  std::string group_;
  std::shared_ptr<Traffic> traffic_;
  std::shared_ptr<GroupBackend> inner_;
};

}  // namespace

std::shared_ptr<GroupBackend> make_counting_backend(std::string group, std::shared_ptr<Traffic> traffic,
                                                    std::shared_ptr<GroupBackend> inner) {
  return std::make_shared<CountingBackend>(std::move(group), std::move(traffic), std::move(inner));
}

}  // namespace metroplex::comm

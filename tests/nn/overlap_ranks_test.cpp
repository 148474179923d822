// Overlap in a column-parallel layer's backward, as a log of events: the input's all-gather with the input gradient,
// the input gradient's reduction with the weight gradient.
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>

#include "nn/linear.h"
#include "nn/tools.h"
#include "support/forwarding_backend.h"
#include "support/run_ranks.h"

namespace metroplex::test::overlap_ranks_test {
namespace {

using Events = std::vector<std::string>;

class LoggedPending final : public comm::Pending {
 public:
  LoggedPending(comm::PendingPtr inner, Events& events, std::string name)
      : inner_(std::move(inner)), events_(events), name_(std::move(name)) {}
  void wait() override {
    events_.push_back("wait " + name_);
    if (inner_) inner_->wait();
  }

 private:
  comm::PendingPtr inner_;
  Events& events_;
  std::string name_;
};

class LoggedBackend final : public ForwardingBackend {
 public:
  LoggedBackend(comm::GroupBackend& inner, Events& events) : ForwardingBackend(inner), events_(events) {}
  comm::PendingPtr all_reduce(at::Tensor x, comm::ReduceOp op) override {
    return logged("all_reduce", inner_.all_reduce(x, op));
  }
  comm::PendingPtr all_gather(at::Tensor out, at::Tensor in) override {
    return logged("all_gather", inner_.all_gather(out, in));
  }
  comm::PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, comm::ReduceOp op) override {
    return logged("reduce_scatter", inner_.reduce_scatter(out, in, op));
  }

 private:
  comm::PendingPtr logged(const std::string& name, comm::PendingPtr pending) {
    events_.push_back("start " + name);
    return std::make_shared<LoggedPending>(std::move(pending), events_, name);
  }
  Events& events_;
};

class LoggedProducts {
 public:
  explicit LoggedProducts(Events& events)
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(
            [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              const std::string name = function.name();
              if (name == "aten::mm" || name == "aten::addmm" || name == "aten::addmm_") log()->push_back("product");
              return nullptr;
            }))) {
    log() = &events;
  }
  ~LoggedProducts() {
    at::removeCallback(handle_);
    log() = nullptr;
  }

 private:
  // A callback is a plain function; the test logs on one rank only.
  static Events*& log() {
    static Events* events = nullptr;
    return events;
  }
  at::CallbackHandle handle_;
};

Events backward_of_a_column_layer(bool sequence_parallel) {
  Events events;
  run_ranks(2, [&](const comm::World& world) {
    const comm::Group& tp = world.groups().tp;
    Events mine;
    const comm::Group watched({"tp", tp.purpose(), tp.ranks()}, tp.index(),
                              std::make_shared<LoggedBackend>(tp.backend(), mine));
    nn::Linear layer({"fc", 8, 12, false}, nn::LinearSplit::output, layer_context(watched, sequence_parallel));
    give_main_grad({&layer.weight()});
    const at::Tensor x = sample({sequence_parallel ? 2 : 4, 3, 8}, 1).requires_grad_(true);
    const at::Tensor out = layer.forward(x);
    mine.clear();
    if (world.rank() != 0) {
      torch::autograd::grad({out}, {x}, {sample({4, 3, 6}, 2)});
      return;
    }
    const LoggedProducts products(mine);
    torch::autograd::grad({out}, {x}, {sample({4, 3, 6}, 2)});
    events = mine;
  });
  return events;
}

TEST(OverlapRanks, TheInputsReductionRunsBesideTheWeightGradient) {
  EXPECT_EQ(backward_of_a_column_layer(false), (Events{"product", "start all_reduce", "product", "wait all_reduce"}));
}

TEST(OverlapRanks, WithSequenceParallelismTheGatherRunsBesideTheInputGradientToo) {
  EXPECT_EQ(backward_of_a_column_layer(true), (Events{"start all_gather", "product", "wait all_gather",
                                                      "start reduce_scatter", "product", "wait reduce_scatter"}));
}

}  // namespace
}  // namespace metroplex::test::overlap_ranks_test

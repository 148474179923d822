// What the executor holds is exactly what the table says, action by action, and within the bounds that verify()
// proves.
#include "pipeline/toy.h"
#include "support/run_ranks.h"

namespace metroplex::test {
namespace {

using plan::Action;
using plan::ActionKind;

// Tensors and runs alive on a rank after each of its calls (a batch of sends and receives is one call).
class Ledger {
 public:
  Ledger(const plan::PipelineTable& table, int rank) : table_(table), rank_(rank) {
    const auto& actions = table.ranks[static_cast<size_t>(rank)];
    for (size_t i = 0; i < actions.size();) {
      if (plan::is_p2p(actions[i].kind)) leaving_ = 0;  // the sends of the call before have completed
      size_t end = i + 1;
      count(actions[i]);
      while (end < actions.size() && actions[i].batch >= 0 && actions[end].batch == actions[i].batch)
        count(actions[end++]);
      expected_.push_back(runs_ + received_ + outputs_ + input_gradients_ + leaving_);
      waiting_.push_back(outputs_ + input_gradients_ + leaving_);
      i = end;
    }
  }
  const std::vector<int>& expected() const { return expected_; }
  const std::vector<int>& waiting() const { return waiting_; }  // of those, on their way out

 private:
  void count(const Action& action) {
    const bool before = table_.num_stages > 1 && !table_.is_first_stage(rank_, action.chunk);
    const bool after = table_.num_stages > 1 && !table_.is_last_stage(rank_, action.chunk);
    switch (action.kind) {
      case ActionKind::forward:
        runs_ += table_.forward_only ? 0 : 1;
        received_ -= before;
        outputs_ += after;
        break;
      case ActionKind::backward:
        --runs_;
        received_ -= after;
        input_gradients_ += before;
        break;
      case ActionKind::recv_forward:
      case ActionKind::recv_backward:
        ++received_;
        break;
      case ActionKind::send_backward:
        --input_gradients_;
        ++leaving_;
        break;
      case ActionKind::free:
        --outputs_;
        break;
      default:
        break;
    }
  }

  const plan::PipelineTable& table_;
  int rank_;
  int runs_ = 0, received_ = 0, outputs_ = 0, input_gradients_ = 0, leaving_ = 0;
  std::vector<int> expected_, waiting_;
};

void check_memory(const char* schedule, int pp, int chunks, int microbatches, bool forward_only) {
  SCOPED_TRACE(schedule + std::string(forward_only ? " forward only" : ""));
  plan::ScheduleRequest request;
  request.num_stages = pp;
  request.num_chunks = chunks;
  request.num_microbatches = microbatches;
  request.forward_only = forward_only;
  const plan::PipelineTable table = plan::build_schedule(schedule, request);
  const plan::VerifyReport report = plan::verify(table);
  const auto batches = toy_batches(microbatches);
  run_ranks(pp, {.pp = pp}, [&](const comm::World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    const ToyStages toy(pp, chunks, world.rank());
    pipeline::Executor executor(toy.pointers(), world.groups().pp);
    std::vector<int> seen;
    executor.set_observer([&](const Action&, double seconds) {
      EXPECT_GE(seconds, 0.0);
      seen.push_back(static_cast<int>(executor.live()));
    });
    executor.run(table, batches, forward_only ? std::vector<double>{} : toy_factors(microbatches),
                 toy_border(batches, false));
    EXPECT_EQ(executor.live(), 0u);
    const Ledger ledger(table, world.rank());
    EXPECT_EQ(seen, ledger.expected());
    const int bound = report.peak_live_activations[rank] + report.peak_received[rank];
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_LE(seen[i], bound + ledger.waiting()[i]) << "call " << i;
  });
}

TEST(ExecutorMemory, HoldsWhatTheScheduleSaysAfterEveryCall) {
  for (const bool forward_only : {false, true}) {
    check_memory("gpipe", 4, 1, 6, forward_only);
    check_memory("1f1b", 4, 1, 8, forward_only);
    check_memory("interleaved", 4, 2, 8, forward_only);
  }
}

TEST(ExecutorMemory, TheLastStageOfOneForwardOneBackwardHoldsOneMicrobatch) {
  plan::ScheduleRequest request;
  request.num_stages = 2;
  request.num_microbatches = 16;
  const plan::PipelineTable table = plan::build_schedule("1f1b", request);
  const auto batches = toy_batches(16);
  run_ranks(2, {.pp = 2}, [&](const comm::World& world) {
    const ToyStages toy(2, 1, world.rank());
    pipeline::Executor executor(toy.pointers(), world.groups().pp);
    size_t peak = 0;
    executor.set_observer([&](const Action&, double) { peak = std::max(peak, executor.live()); });
    executor.run(table, batches, toy_factors(16), toy_border(batches, false));
    // Last stage: a run, its gradient on the way out, and the next input. First stage: two runs, output and gradient.
    EXPECT_EQ(peak, world.rank() == 1 ? 2u : 4u);
  });
}

// The storage itself, not only the handle: an output's memory is gone once it is sent and freed.
TEST(ExecutorMemory, ReceivedInputsDieWithTheirBackward) {
  plan::ScheduleRequest request;
  request.num_stages = 2;
  request.num_microbatches = 6;
  const plan::PipelineTable table = plan::build_schedule("1f1b", request);
  const auto batches = toy_batches(6);
  run_ranks(2, {.pp = 2}, [&](const comm::World& world) {
    std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> inputs;
    std::vector<std::unique_ptr<nn::Segment>> segments;
    class Watch final : public nn::Segment {
     public:
      Watch(std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>>& seen, std::unique_ptr<nn::Segment> inner)
          : seen_(seen), inner_(std::move(inner)) {}
      const std::string& name() const override { return inner_->name(); }
      void collect_params(std::vector<nn::Param*>& params) override { inner_->collect_params(params); }
      at::Tensor forward(const at::Tensor& x, const nn::Microbatch& batch) override {
        if (x.defined()) seen_.emplace_back(x.getIntrusivePtr());
        return inner_->forward(x, batch);
      }

     private:
      std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>>& seen_;
      std::unique_ptr<nn::Segment> inner_;
    };
    for (int64_t i = 0; i < 4; ++i) {
      segments.push_back(std::make_unique<Watch>(inputs, std::make_unique<ToyLayer>(4 * world.rank() + i)));
    }
    pipeline::Stage stage(std::move(segments));
    pipeline::Executor executor({&stage}, world.groups().pp);
    size_t most = 0;
    executor.set_observer([&](const Action&, double) {
      size_t alive = 0;
      for (const auto& input : inputs) alive += !input.expired();
      most = std::max(most, alive);
    });
    for (nn::Param* param : stage.params()) param->main_grad = at::zeros_like(param->data);
    executor.run(table, batches, toy_factors(6), toy_border(batches, false));
    // Segments with an input: 3 on the first stage, in 2 runs; 4 on the last one, in 1.
    EXPECT_EQ(most, world.rank() == 0 ? 6u : 4u);
    for (const auto& input : inputs) EXPECT_TRUE(input.expired());
  });
}

}  // namespace
}  // namespace metroplex::test

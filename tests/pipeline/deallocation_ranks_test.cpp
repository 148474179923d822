// The executor holds exactly the tensors that the table implies, action by action, within the bounds of verify().
#include <map>
#include <set>

#include "pipeline/toy.h"
#include "support/run_ranks.h"

namespace metroplex::test::deallocation_ranks_test {
namespace {

using plan::Action;
using plan::ActionKind;

plan::PipelineTable build_table(const char* schedule, int pp, int chunks, int microbatches,
                                bool forward_only = false) {
  plan::ScheduleRequest request;
  request.num_stages = pp;
  request.num_chunks = chunks;
  request.num_microbatches = microbatches;
  request.forward_only = forward_only;
  return plan::build_schedule(schedule, request);
}

// Tensors and runs alive on a rank after each of its actions; those of one call (a batch of sends and receives) end
// together. A sent tensor stays until its call has been waited for. That happens with a tensor received by the same
// call, for an output when its gradient arrives, or when two newer sends are in flight.
class Ledger {
 public:
  Ledger(const plan::PipelineTable& table, int rank) : table_(table), rank_(rank) {
    const auto& actions = table.ranks[static_cast<size_t>(rank)];
    for (size_t i = 0; i < actions.size(); ++call_) {
      size_t end = i + 1;
      count(actions[i]);
      while (end < actions.size() && actions[i].batch >= 0 && actions[end].batch == actions[i].batch)
        count(actions[end++]);
      const int sent = outputs_ + input_gradients_ + static_cast<int>(leaving_.size());
      expected_.insert(expected_.end(), end - i, runs_ + received_ + sent);
      waiting_.insert(waiting_.end(), end - i, sent);
      i = end;
    }
  }
  const std::vector<int>& expected() const { return expected_; }
  const std::vector<int>& waiting() const { return waiting_; }  // of those, sends in flight

 private:
  using Key = std::pair<int, int>;

  void count(const Action& action) {
    const plan::StagePlacement placement = table_.placement();
    const bool before = placement.peer({rank_, action.chunk}, -1) >= 0;
    const bool after = placement.peer({rank_, action.chunk}, 1) >= 0;
    const Key key{action.microbatch, action.chunk};
    switch (action.kind) {
      case ActionKind::forward:
        runs_ += table_.forward_only ? 0 : 1;
        received_ -= before;
        outputs_ += after;
        if (before) finish(input_calls_.at(key));
        break;
      case ActionKind::backward:
        --runs_;
        received_ -= after;
        input_gradients_ += before;
        if (after) finish(gradient_calls_.at(key));
        if (after) finish(output_calls_.at(key));
        break;
      case ActionKind::recv_forward:
      case ActionKind::recv_backward:
        (action.kind == ActionKind::recv_forward ? input_calls_ : gradient_calls_)[key] = call_;
        ++received_;
        break;
      case ActionKind::send_forward:
        output_calls_[key] = call_;
        break;
      case ActionKind::send_backward:
        --input_gradients_;
        leave(call_);
        break;
      case ActionKind::free:
        --outputs_;
        leave(output_calls_.at(key));
        break;
      default:
        break;
    }
  }
  void finish(int call) {
    done_.insert(call);
    std::erase(leaving_, call);
  }
  void leave(int call) {
    if (!done_.contains(call)) leaving_.push_back(call);
    if (leaving_.size() > 2) finish(leaving_.front());
  }

  const plan::PipelineTable& table_;
  int rank_, call_ = 0;
  int runs_ = 0, received_ = 0, outputs_ = 0, input_gradients_ = 0;
  std::map<Key, int> input_calls_, gradient_calls_, output_calls_;
  std::set<int> done_;
  std::vector<int> leaving_;  // the call of each sent tensor that is held
  std::vector<int> expected_, waiting_;
};

void check_memory(const plan::PipelineTable& table) {
  SCOPED_TRACE(table.name + (table.forward_only ? " forward only" : ""));
  const plan::VerifyReport report = plan::verify(table);
  const int pp = table.num_stages;
  const auto batches = toy_batches(table.num_microbatches);
  run_ranks(pp, {.pp = pp}, [&](const comm::World& world) {
    const auto rank = static_cast<size_t>(world.rank());
    const ToyStages toy(pp, table.num_chunks, world.rank());
    pipeline::Executor executor(toy.pointers(), world.groups().pp);
    std::vector<int> seen;
    std::vector<Action> actions;
    executor.observers().add("test", [&](const Action& action, double seconds) {
      EXPECT_GE(seconds, 0.0);
      actions.push_back(action);
      seen.push_back(static_cast<int>(executor.num_live()));
    });
    executor.run({table, batches, table.forward_only ? at::Tensor() : toy_factors(table.num_microbatches),
                  toy_border(batches, false)});
    EXPECT_EQ(executor.num_live(), 0u);
    EXPECT_EQ(actions, table.ranks[rank]);
    const Ledger ledger(table, world.rank());
    EXPECT_EQ(seen, ledger.expected());
    const int bound = report.peak_live_activations[rank] + report.peak_received[rank];
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_LE(seen[i], bound + ledger.waiting()[i]) << "action " << i;
  });
}

TEST(ExecutorMemory, HoldsWhatTheScheduleSaysAfterEveryAction) {
  for (const bool forward_only : {false, true}) {
    check_memory(build_table("gpipe", 4, 1, 6, forward_only));
    check_memory(build_table("1f1b", 4, 1, 8, forward_only));
    check_memory(build_table("interleaved", 4, 2, 8, forward_only));
  }
}

TEST(ExecutorMemory, TheLastStageOfOneForwardOneBackwardHoldsOneMicrobatch) {
  const plan::PipelineTable table = build_table("1f1b", 2, 1, 16);
  const auto batches = toy_batches(16);
  run_ranks(2, {.pp = 2}, [&](const comm::World& world) {
    const ToyStages toy(2, 1, world.rank());
    pipeline::Executor executor(toy.pointers(), world.groups().pp);
    size_t peak = 0;
    executor.observers().add("test", [&](const Action&, double) { peak = std::max(peak, executor.num_live()); });
    executor.run({table, batches, toy_factors(16), toy_border(batches, false)});
    // Last stage: a run, its gradient being sent, and the next input. First stage: two runs, two outputs (the
    // warm-up's output was sent alone, so nothing confirms its arrival), a gradient.
    EXPECT_EQ(peak, world.rank() == 1 ? 2u : 5u);
  });
}

// Checks the storage, not only the handle: an output's memory is freed once it is sent and released.
TEST(ExecutorMemory, ReceivedInputsDieWithTheirBackward) {
  const plan::PipelineTable table = build_table("1f1b", 2, 1, 6);
  const auto batches = toy_batches(6);
  run_ranks(2, {.pp = 2}, [&](const comm::World& world) {
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> inputs;
    nn::Blocks blocks;
    class WatchedSegment final : public nn::Segment {
     public:
      WatchedSegment(std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>& seen, std::unique_ptr<nn::Segment> inner)
          : seen_(seen), inner_(std::move(inner)) {}
      const std::string& name() const override { return inner_->name(); }
      void collect_params(std::vector<nn::Param*>& params) override { inner_->collect_params(params); }
      nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
        for (const auto& [name, x] : in) seen_.push_back(x.tensor().storage().getWeakStorageImpl());
        return inner_->forward(in, context);
      }

     private:
      std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>& seen_;
      std::unique_ptr<nn::Segment> inner_;
    };
    for (int64_t i = 0; i < 4; ++i) {
      blocks.push_back(
          one_segment(std::make_unique<WatchedSegment>(inputs, std::make_unique<ToyLayer>(4 * world.rank() + i))));
    }
    pipeline::Stage stage(std::move(blocks));
    pipeline::Executor executor({&stage}, world.groups().pp);
    size_t most = 0;
    executor.observers().add("test", [&](const Action&, double) {
      size_t alive = 0;
      for (const auto& input : inputs) alive += !input.expired();
      most = std::max(most, alive);
    });
    for (nn::Param* param : stage.params()) param->main_grad = at::zeros_like(param->data);
    executor.run({table, batches, toy_factors(6), toy_border(batches, false)});
    // Segments with an input: 3 on the first stage, in 2 runs; 4 on the last one, in 1.
    EXPECT_EQ(most, world.rank() == 0 ? 6u : 4u);
    for (const auto& input : inputs) EXPECT_TRUE(input.expired());
  });
}

}  // namespace
}  // namespace metroplex::test::deallocation_ranks_test

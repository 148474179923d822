// With an overlapped schedule an exchange is in flight while the ranks compute and while the next one is issued.
#include <algorithm>

#include "pipeline/toy.h"
#include "support/forwarding_backend.h"
#include "support/run_ranks.h"

namespace metroplex::test::executor_overlap_ranks_test {
namespace {

enum class EventKind { compute, issue, wait };
struct Event {
  EventKind what;
  size_t call;  // of p2p, counted from 0; for compute the number of calls so far
};
using Events = std::vector<Event>;

class WatchedPending final : public comm::Pending {
 public:
  WatchedPending(comm::PendingPtr inner, Events& events, size_t call)
      : inner_(std::move(inner)), events_(events), call_(call) {}
  void wait() override {
    events_.push_back({EventKind::wait, call_});
    if (inner_) inner_->wait();
  }

 private:
  comm::PendingPtr inner_;
  Events& events_;
  size_t call_;
};

class WatchedBackend final : public ForwardingBackend {
 public:
  WatchedBackend(comm::GroupBackend& inner, Events& events) : ForwardingBackend(inner), events_(events) {}
  comm::PendingPtr batch_p2p(std::vector<comm::P2pOp> ops) override {
    events_.push_back({EventKind::issue, calls_});
    return std::make_shared<WatchedPending>(inner_.batch_p2p(std::move(ops)), events_, calls_++);
  }
  size_t calls() const { return calls_; }

 private:
  Events& events_;
  size_t calls_ = 0;
};

// The calls between a rank's first backward and its last forward: those of its steady state.
std::pair<size_t, size_t> steady_calls(const std::vector<plan::Action>& actions) {
  size_t calls = 0, first = 0, last = 0;
  bool backward_seen = false;
  for (size_t i = 0; i < actions.size(); ++i) {
    const bool continues = i > 0 && actions[i].batch >= 0 && actions[i].batch == actions[i - 1].batch;
    if (plan::is_p2p(actions[i].kind) && !continues) ++calls;
    if (actions[i].kind == plan::ActionKind::backward && !backward_seen) first = calls, backward_seen = true;
    if (actions[i].kind == plan::ActionKind::forward) last = calls;
  }
  return {first, last};
}

TEST(ExecutorOverlap, AnExchangeIsUnderWayDuringTheNextComputationAndTheNextExchange) {
  for (const bool rendezvous : {false, true}) {
    plan::ScheduleRequest request;
    request.num_stages = 4;
    request.num_chunks = 2;
    request.num_microbatches = 16;
    request.overlap_p2p = true;
    const plan::PipelineTable table = plan::build_schedule("interleaved", request);
    const auto batches = toy_batches(request.num_microbatches);
    run_ranks(4, {.pp = 4},
              [&](const comm::World& world) {
                const comm::Group& pp = world.groups().pp;
                Events events;
                const auto watched = std::make_shared<WatchedBackend>(pp.backend(), events);
                const ToyStages toy(4, 2, pp.index());
                pipeline::Executor executor(toy.pointers(),
                                            comm::Group({"pp", pp.purpose(), pp.ranks()}, pp.index(), watched));
                executor.observers().add("test", [&](const plan::Action& action, double) {
                  if (plan::is_compute(action.kind)) events.push_back({EventKind::compute, watched->calls()});
                });
                executor.run({table, batches, toy_factors(request.num_microbatches), toy_border(batches, false)});
                const auto [first, last] = steady_calls(table.ranks[static_cast<size_t>(pp.index())]);
                EXPECT_GE(last - first, 16u);
                for (size_t call = first; call < last; ++call) {
                  const auto at = [&](EventKind what) {
                    return std::find_if(events.begin(), events.end(),
                                        [&](const Event& event) { return event.what == what && event.call == call; });
                  };
                  const auto issued = at(EventKind::issue), waited = at(EventKind::wait);
                  ASSERT_LT(issued, waited);
                  const auto between = [&](EventKind what) {
                    return std::count_if(issued + 1, waited, [&](const Event& event) { return event.what == what; });
                  };
                  EXPECT_GE(between(EventKind::compute), 1) << "call " << call;
                  EXPECT_GE(between(EventKind::issue), 1) << "call " << call;
                }
              },
              {.rendezvous = rendezvous, .timeout = std::chrono::seconds(20)});
  }
}

}  // namespace
}  // namespace metroplex::test::executor_overlap_ranks_test

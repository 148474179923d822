// Communication on tapes with thread ranks: buffers in flight, and the order of calls among the ranks. Each fault is
// planted into the ranks' work, recorded at their groups, and reported with operator and location.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "comm/backends/recording.h"
#include "comm/collectives.h"
#include "tape_check/tape_findings.h"
#include "support/record_tape.h"
#include "support/run_ranks.h"

namespace metroplex::test::tape_calls_ranks_test {
namespace {

using tape_check::Finding;
using Kind = tape_check::FindingKind;

// A rank's state during recording: its groups, and persistent memory.
struct Rank {
  graph::TapeRecorder recorder;
  comm::World world;
  at::Tensor x = at::ones({4, 2}, at::kDouble), received = at::zeros({4, 2}, at::kDouble);
  at::Tensor gathered = at::zeros({8, 2}, at::kDouble);
  explicit Rank(const comm::World& plain) : world(plain.recorded(recorder)) {}
  const comm::Groups& groups() const { return world.groups(); }
  // All ranks have issued and all data are copied, so that an early access in a test is no race between threads.
  void meet() const { comm::barrier(groups().pp); }
  void set_place(const char* place) { recorder.set_place(place); }
  comm::Handle exchange() const {
    const int peer = 1 - groups().pp.index();
    return comm::batch_p2p({{true, x, peer, 0}, {false, received, peer, 0}}, groups().pp);
  }
};

using Work = std::function<void(Rank&)>;

std::vector<std::vector<Finding>> check_ranks(const Layout& layout, const Work& work) {
  const int ranks = layout.tp * layout.pp * layout.dp;
  std::vector<std::vector<Finding>> found(static_cast<size_t>(ranks));
  run_ranks(ranks, layout, [&](const comm::World& world) {
    Rank rank(world);
    const RecordedTape tape = record_tape(rank.recorder, [&] { work(rank); });
    found[static_cast<size_t>(world.rank())] = check_tape(tape.recording());
  });
  return found;
}

std::vector<Finding> compare_ranks(const Layout& layout, const Work& work) {
  const int ranks = layout.tp * layout.pp * layout.dp;
  std::vector<tape_check::RankCalls> calls(static_cast<size_t>(ranks));
  run_ranks(ranks, layout, [&](const comm::World& world) {
    Rank rank(world);
    const RecordedTape tape = record_tape(rank.recorder, [&] { work(rank); });
    tape_check::RankCalls& mine = calls[static_cast<size_t>(world.rank())];
    mine.calls = tape_check::list_calls(tape.tape);
    for (const comm::Group* group : {&world.groups().tp, &world.groups().pp, &world.groups().dp})
      mine.groups[group->name()] = {to_string(group->purpose()), group->ranks()};
  });
  return tape_check::compare_calls(calls);
}

// Holds its arguments, as a backend does until its peers have copied.
class HoldingBackend final : public comm::GroupBackend {
 public:
  std::vector<at::Tensor> held_tensors;
  comm::PendingPtr all_reduce(at::Tensor x, comm::ReduceOp) override { return hold({x}); }
  comm::PendingPtr all_gather(at::Tensor out, at::Tensor in) override { return hold({out, in}); }
  comm::PendingPtr reduce_scatter(at::Tensor out, at::Tensor in, comm::ReduceOp) override { return hold({out, in}); }
  comm::PendingPtr broadcast(at::Tensor x, int) override { return hold({x}); }
  comm::PendingPtr all_to_all(at::Tensor out, at::Tensor in, std::vector<int64_t>, std::vector<int64_t>) override {
    return hold({out, in});
  }
  comm::PendingPtr batch_p2p(std::vector<comm::P2pOp> ops) override {
    for (const comm::P2pOp& op : ops) held_tensors.push_back(op.tensor);
    return nullptr;
  }
  void barrier() override {}

 private:
  comm::PendingPtr hold(std::vector<at::Tensor> tensors) {
    held_tensors.insert(held_tensors.end(), tensors.begin(), tensors.end());
    return nullptr;
  }
};

// A rank that fails between the two frees its tensors while peers still copy from them.
TEST(TapeFlights, ACallThatIsNeverWaitedForKeepsItsMemory) {
  graph::TapeRecorder recorder;
  const auto pool = std::make_shared<graph::TapePool>(1 << 20);
  const auto inner = std::make_shared<HoldingBackend>();
  const auto backend = comm::make_recording_backend("tp", recorder, inner);
  recorder.begin(pool);
  const void *sent = nullptr, *batched = nullptr;
  {
    const at::Tensor in = at::ones({4}), out = at::empty({8}), other = at::ones({4});
    sent = in.const_data_ptr();
    batched = other.const_data_ptr();
    backend->all_gather(out, in);
    backend->batch_p2p({{true, other, 1, 0}});
  }
  EXPECT_GE(pool->allocation_at(sent), 0);
  EXPECT_GE(pool->allocation_at(batched), 0);
  inner->held_tensors.clear();
  EXPECT_EQ(pool->allocation_at(sent), -1);
  EXPECT_EQ(pool->allocation_at(batched), -1);
  recorder.abandon();
}

TEST(TapeFlightsRanks, WhoWaitsBeforeHeTouchesHasNoFinding) {
  for (const auto& found : check_ranks({.pp = 2}, [](Rank& rank) {
         comm::Handle exchange = rank.exchange();
         rank.gathered.narrow(0, 0, 4).add_(rank.x);  // sent data may be read
         exchange.wait();
         rank.x.mul_(2.0).add_(rank.received);
       }))
    EXPECT_EQ(report(found), "");
}

TEST(TapeFlightsRanks, AReceiveBufferReusedWhileASlowPeerStillSendsIsNamed) {
  for (const auto& found : check_ranks({.pp = 2}, [](Rank& rank) {
         comm::Handle exchange = rank.exchange();
         rank.meet();
         rank.set_place("layer 1");
         rank.received.zero_();
         exchange.wait();
       }))
    expect_finding(found, Kind::in_flight, "aten::zero_", "layer 1", "writes what may still be received by");
}

TEST(TapeFlightsRanks, AReceivedValueReadBeforeItHasComeIsNamed) {
  for (const auto& found : check_ranks({.pp = 2}, [](Rank& rank) {
         comm::Handle exchange = rank.exchange();
         rank.meet();
         rank.set_place("layer 1");
         rank.gathered.narrow(0, 0, 4).copy_(rank.received);
         exchange.wait();
       }))
    expect_finding(found, Kind::in_flight, "aten::copy_", "layer 1", "reads what may not have been received yet by");
}

TEST(TapeFlightsRanks, ASendBufferOverwrittenBeforeItHasBeenWaitedForIsNamed) {
  for (const auto& found : check_ranks({.pp = 2}, [](Rank& rank) {
         comm::Handle exchange = rank.exchange();
         rank.meet();
         rank.set_place("layer 1");
         rank.x.narrow(0, 3, 1).mul_(2.0);
         exchange.wait();
       }))
    expect_finding(found, Kind::in_flight, "aten::mul_.Scalar", "layer 1",
                   "writes what may still be sent by operation 0, batch_p2p on pp");
}

TEST(TapeFlightsRanks, OneOfSeveralCallsUnderWayIsNamed) {
  for (const auto& found : check_ranks({.pp = 2}, [](Rank& rank) {
         const int peer = 1 - rank.groups().pp.index();
         rank.set_place("layer 1");
         comm::Handle sends = comm::batch_p2p(
             {{true, rank.x, peer, 0}, {false, at::empty({4, 2}, at::kDouble), peer, 0}}, rank.groups().pp);
         rank.set_place("layer 2");
         comm::Handle gathers = comm::all_gather_into_async(rank.gathered, rank.x, rank.groups().pp);
         rank.meet();
         rank.set_place("layer 3");
         rank.gathered.narrow(0, 4, 4).sin_();
         sends.wait();
         gathers.wait();
       }))
    expect_finding(found, Kind::in_flight, "aten::sin_", "layer 3", "all_gather on pp, of layer 2");
}

TEST(TapeFlightsRanks, ACallThatNobodyWaitsForIsNamed) {
  std::vector<comm::Handle> later(2);
  for (const auto& found : check_ranks({.pp = 2}, [&](Rank& rank) {
         rank.set_place("layer 1");
         later[static_cast<size_t>(rank.world.rank())] = rank.exchange();
         rank.meet();
       }))
    expect_finding(found, Kind::never_waited, "batch_p2p", "layer 1", "is not waited for before the tape ends");
}

// tp, dp and pp, in an order that all ranks share.
void clean(Rank& rank) {
  rank.set_place("layer 1");
  comm::all_reduce(rank.x, rank.groups().tp);
  comm::all_gather_into_async(rank.gathered, rank.x, rank.groups().tp).wait();
  rank.set_place("layer 2");
  comm::all_reduce(rank.x, rank.groups().dp);
  rank.exchange().wait();
  const int64_t own = rank.groups().dp.index();
  comm::all_to_all(rank.x, {2 * own + 1, 2 * own + 1}, {1, 3}, rank.groups().dp);
}

TEST(TapeCallsRanks, RanksThatAgreeHaveNoFinding) {
  EXPECT_EQ(tape_check::report(compare_ranks({.tp = 2, .pp = 2, .dp = 2}, clean)), "");
}

// The threads backend also matches the calls of two ranks, so mismatched calls come from two recordings, one for each
// rank.
std::vector<Finding> compare_recordings(const Work& even, const Work& odd) {
  std::vector<tape_check::RankCalls> calls(2);
  for (const Work* work : {&even, &odd}) {
    run_ranks(2, {.pp = 2}, [&](const comm::World& world) {
      Rank rank(world);
      const RecordedTape tape = record_tape(rank.recorder, [&] { (*work)(rank); });
      if ((world.rank() == 1) != (work == &odd)) return;
      calls[static_cast<size_t>(world.rank())] = {tape_check::list_calls(tape.tape), {{"pp", {"pipeline", {0, 1}}}}};
    });
  }
  return tape_check::compare_calls(calls);
}

TEST(TapeCallsRanks, CollectivesInAnotherOrderAreNamed) {
  const auto sums = [](Rank& rank) {
    rank.set_place("layer 1");
    comm::all_reduce(rank.x, rank.groups().pp);
  };
  const auto gathers = [](Rank& rank) {
    rank.set_place("layer 2");
    comm::all_gather_into_async(rank.gathered, rank.x, rank.groups().pp).wait();
  };
  expect_finding(
      compare_recordings([&](Rank& rank) { sums(rank), sums(rank), gathers(rank); },
                         [&](Rank& rank) { sums(rank), gathers(rank), sums(rank); }),
      Kind::other_order, "all_reduce", "layer 1",
      "group pp: call 1 of rank 0 is all_reduce Double [4, 2] op 0 of layer 1, that of rank 1 is all_gather "
      "Double [4, 2] of layer 2");
  expect_finding(compare_recordings([&](Rank& rank) { sums(rank); }, [&](Rank& rank) { sums(rank), gathers(rank); }),
                 Kind::other_order, "all_gather", "layer 2", "call 1 of rank 0 is nothing more");
  EXPECT_EQ(tape_check::report(compare_recordings([&](Rank& rank) { sums(rank), gathers(rank); },
                                                  [&](Rank& rank) { sums(rank), gathers(rank); })),
            "");
}

TEST(TapeCallsRanks, ACallOfAnotherSizeTypeOrKindIsNamed) {
  const auto sum = [](const at::Tensor& x, comm::ReduceOp op = comm::ReduceOp::sum) {
    return [x, op](Rank& rank) {
      rank.set_place("layer 1");
      comm::all_reduce(x.clone(), rank.groups().pp, op);
    };
  };
  const at::Tensor x = at::ones({4}, at::kDouble);
  expect_finding(compare_recordings(sum(x), sum(at::ones({5}, at::kDouble))), Kind::other_order, "all_reduce",
                 "layer 1", "Double [4] op 0 of layer 1, that of rank 1 is all_reduce Double [5]");
  expect_finding(compare_recordings(sum(x), sum(at::ones({4}, at::kFloat))), Kind::other_order, "all_reduce",
                 "layer 1", "all_reduce Float [4]");
  expect_finding(compare_recordings(sum(x), sum(x, comm::ReduceOp::max)), Kind::other_order, "all_reduce", "layer 1",
                 "[4] op 1");
}

// Messages of the given sizes from rank 0 to rank 1, or back.
Work messages(const std::vector<int64_t>& sizes, int channel) {
  return [=](Rank& rank) {
    const int index = rank.groups().pp.index();
    rank.set_place(index == 0 ? "stage 0" : "stage 1");
    for (const int64_t size : sizes) {
      const at::Tensor x = at::ones({size}, at::kDouble);
      comm::batch_p2p({{index == 0, x, 1 - index, channel}}, rank.groups().pp).wait();
    }
  };
}

TEST(TapeCallsRanks, MessagesInAnotherOrderThanThePeersAreNamed) {
  EXPECT_EQ(tape_check::report(compare_recordings(messages({2, 3}, 1), messages({2, 3}, 1))), "");
  expect_finding(compare_recordings(messages({2, 3, 4}, 0), messages({2, 4, 3}, 0)), Kind::other_order, "batch_p2p",
                 "stage 0",
                 "group pp, channel 0: call 1 of rank 0 to rank 1 is Double [3] of stage 0, that of rank 1 from rank "
                 "0 is Double [4] of stage 1");
  expect_finding(compare_recordings(messages({2}, 0), messages({2, 3}, 0)), Kind::other_order, "batch_p2p", "stage 1",
                 "call 1 of rank 0 to rank 1 is nothing more");
}

TEST(TapeCallsRanks, AMessageOnAnotherChannelHasNoOtherEnd) {
  const auto found = compare_recordings(messages({2}, 0), messages({2}, 1));
  ASSERT_EQ(found.size(), 2u) << tape_check::report(found);
  EXPECT_EQ(found[0].place, "stage 0");
  EXPECT_EQ(found[1].place, "stage 1");
}

TEST(TapeCallsRanks, RowsThatOneSendsAndTheOtherDoesNotWaitForAreNamed) {
  const auto rows = [](int64_t to_other) {
    return [=](Rank& rank) {
      rank.set_place("dispatch");
      comm::all_to_all(at::ones({2 * to_other, 2}, at::kDouble), {to_other, to_other}, {to_other, to_other},
                       rank.groups().pp);
    };
  };
  EXPECT_EQ(tape_check::report(compare_recordings(rows(2), rows(2))), "");
  expect_finding(compare_recordings(rows(2), rows(3)), Kind::other_order, "all_to_all", "dispatch",
                 "rank 0 sends 2 rows to rank 1, which waits for 3");
}

TEST(TapeCallsRanks, GroupsOfTheSameMembersAndPurposeShareACommunicator) {
  tape_check::RankCalls first, second;
  first.groups = second.groups = {{"dp", {"gradients", {0, 1}}}, {"dp_cp", {"gradients", {0, 1}}}};
  const tape_check::TapeCall dp{"dp", "all_reduce", "layer 1", " Float [2]", {}, {}, {}};
  const tape_check::TapeCall dp_cp{"dp_cp", "all_gather", "layer 2", " Float [2]", {}, {}, {}};
  first.calls = {dp, dp_cp};
  second.calls = {dp_cp, dp};
  expect_finding(tape_check::compare_calls({first, second}), Kind::other_order, "all_reduce", "layer 1");
  first.groups["dp"].purpose = second.groups["dp"].purpose = "layers";
  EXPECT_EQ(tape_check::report(tape_check::compare_calls({first, second})), "")
      << "each has a communicator of its own";
}

}  // namespace
}  // namespace metroplex::test::tape_calls_ranks_test

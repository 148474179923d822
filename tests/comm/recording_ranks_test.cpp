// A group with a recorder (Group::recorded): the recorded operation of every call, and replay of the recorded calls
// on all ranks with other inputs.
#include "comm/collectives.h"
#include "support/collective_checks.h"
#include "support/run_ranks.h"
#include "support/operation_recorder.h"

namespace metroplex::test::recording_ranks_test {
namespace {

struct Buffers {
  at::Tensor reduced, gathered_in, gathered, scattered_in, scattered, sent, received, root;
  explicit Buffers(int rank, double base)
      : reduced(at::full({2}, base + rank, at::kDouble)),
        gathered_in(at::full({2}, base + rank, at::kDouble)),
        gathered(at::zeros({6}, at::kDouble)),
        scattered_in(at::arange(6, at::kDouble) + base * rank),
        scattered(at::zeros({2}, at::kDouble)),
        sent(at::full({3}, base * rank, at::kDouble)),
        received(at::zeros({3}, at::kDouble)),
        root(at::full({2}, base - rank, at::kDouble)) {}
  std::vector<at::Tensor*> all() {
    return {&reduced, &gathered_in, &gathered, &scattered_in, &scattered, &sent, &received, &root};
  }
};

void call_all(Buffers& buffers, const comm::Group& group) {
  comm::all_reduce(buffers.reduced, group);
  comm::Handle gather = comm::all_gather_into_async(buffers.gathered, buffers.gathered_in, group);
  comm::reduce_scatter_into_async(buffers.scattered, buffers.scattered_in, group).wait();
  gather.wait();
  const int n = group.size(), next = (group.index() + 1) % n, previous = (group.index() + n - 1) % n;
  comm::batch_p2p({{true, buffers.sent, next, 0}, {false, buffers.received, previous, 0}}, group).wait();
  comm::broadcast(buffers.root, 1, group);
  comm::barrier(group);
}

TEST(RecordingRanks, EveryCallIsToldAndCanBeRunAgain) {
  run_ranks(3, [](const comm::World& world) {
    OperationRecorder recorder;
    const comm::Group group = world.groups().tp.recorded(recorder);
    Buffers first(world.rank(), 1.0), other(world.rank(), 7.0), expected(world.rank(), 7.0);
    call_all(first, group);
    call_all(expected, world.groups().tp);
    std::vector<std::string> names;
    for (const OperationRecorder::Recorded& kept : recorder.operations()) {
      names.push_back(kept.operation.name);
      EXPECT_EQ(kept.operation.group, "tp");
    }
    EXPECT_EQ(names, (std::vector<std::string>{"all_reduce", "wait", "all_gather", "reduce_scatter", "wait", "wait",
                                               "batch_p2p", "wait", "broadcast", "wait", "barrier"}));
    const auto pointers = [&](size_t i, bool reads) {
      std::vector<const void*> all;
      for (const at::Tensor& x :
           reads ? recorder.operations()[i].operation.reads : recorder.operations()[i].operation.writes)
        all.push_back(x.const_data_ptr());
      return all;
    };
    const auto address_list = [](const at::Tensor& x) { return std::vector<const void*>{x.const_data_ptr()}; };
    EXPECT_EQ(pointers(0, true), address_list(first.reduced));
    EXPECT_EQ(pointers(0, false), address_list(first.reduced));
    EXPECT_EQ(pointers(2, true), address_list(first.gathered_in));
    EXPECT_EQ(pointers(2, false), address_list(first.gathered));
    EXPECT_EQ(pointers(3, true), address_list(first.scattered_in));
    EXPECT_EQ(pointers(3, false), address_list(first.scattered));
    EXPECT_EQ(pointers(4, false), address_list(first.scattered));  // readable after the wait
    EXPECT_EQ(pointers(6, true), address_list(first.sent));
    EXPECT_EQ(pointers(6, false), address_list(first.received));
    const std::vector<at::Tensor*> to = first.all(), from = other.all(), want = expected.all();
    for (size_t i = 0; i < to.size(); ++i) to[i]->copy_(*from[i]);
    recorder.replay();
    for (size_t i = 0; i < to.size(); ++i) EXPECT_TRUE(at::equal(*to[i], *want[i])) << i;
  });
}

TEST(RecordingRanks, RecordedGroupsDoWhatEveryBackendMust) {
  run_ranks(2, [](const comm::World& world) {
    OperationRecorder recorder;
    check_collectives(world.groups().tp.recorded(recorder));
    EXPECT_GT(recorder.calls()["all_to_all"], 0);
  });
}

TEST(RecordingRanks, AGroupOfOneHasNothingToTell) {
  OperationRecorder recorder;
  Buffers buffers(0, 1.0);
  comm::all_reduce(buffers.reduced, comm::Group().recorded(recorder));
  EXPECT_TRUE(recorder.operations().empty());
}

}  // namespace
}  // namespace metroplex::test::recording_ranks_test

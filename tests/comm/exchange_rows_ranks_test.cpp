// Rows exchanged by counts on the device, with thread ranks.
#include <ATen/ATen.h>

#include "comm/backends/counting.h"
#include "support/exchange_checks.h"
#include "support/forwarding_backend.h"
#include "support/record_tape.h"
#include "support/run_ranks.h"
#include "support/operation_recorder.h"

namespace metroplex::test::exchange_rows_ranks_test {
namespace {

TEST(ExchangeRows, DeliversWhatAnAllToAllWouldAndBringsItHome) {
  for (const int n : {1, 2, 3, 4})
    run_ranks(n, [](const comm::World& world) { check_exchange_rows(world.groups().tp); });
}

// As on NCCL: GroupBackend's default implementation over an all-to-all.
TEST(ExchangeRows, OfEqualCapacityDeliversTheSame) {
  for (const int n : {2, 3, 4}) {
    run_ranks(n, [](const comm::World& world) {
      const comm::Group& tp = world.groups().tp;
      check_exchange_rows(comm::Group({"tp", tp.purpose(), tp.ranks()}, tp.index(),
                                      std::make_shared<ForwardingBackend>(tp.backend())));
    });
  }
}

// Member 0 has five rows for member 1, but the capacity is three; the others have one row for each member.
TEST(ExchangeRows, APairBeyondItsCapacityIsFlaggedAtBothEndsAndNowhereElse) {
  run_ranks(3, [](const comm::World& world) {
    const RowCounts counts{{1, 5, 1}, {1, 1, 1}, {1, 1, 1}};
    const int me = world.rank();
    ExchangedRows out(9, 3);
    const auto& mine = counts[static_cast<size_t>(me)];
    comm::exchange_rows_async(out.place(), {make_rows(me, total(mine), 7), at::tensor(mine)}, 3, out.overflow,
                              world.groups().tp)
        .wait();
    EXPECT_EQ(out.flag(), me < 2);
    if (me != 1) return;
    EXPECT_TRUE(at::equal(out.counts, at::tensor({3, 1, 1}, at::kLong)));
    EXPECT_TRUE(
        at::equal(out.rows.select(1, 0).narrow(0, 0, 5), at::tensor({1.0, 2.0, 3.0, 1001.0, 2001.0}, at::kDouble)));
  });
}

TEST(ExchangeRows, AReceiverWithoutRoomKnowsItAlone) {
  run_ranks(3, [](const comm::World& world) {
    const int me = world.rank();
    ExchangedRows out(me == 0 ? 3 : 6, 3);
    comm::exchange_rows_async(out.place(), {make_rows(me, 6, 6), at::full({3}, 2, at::kLong)}, 2, out.overflow,
                              world.groups().tp)
        .wait();
    EXPECT_EQ(out.flag(), me == 0);
    EXPECT_EQ(out.counts.sum().item<int64_t>(), me == 0 ? 3 : 6);
    if (me != 0) return;
    EXPECT_TRUE(at::equal(out.counts, at::tensor({2, 1, 0}, at::kLong)));
    EXPECT_TRUE(at::equal(out.rows.select(1, 0), at::tensor({0.0, 1.0, 1000.0}, at::kDouble)));
  });
}

TEST(ExchangeRows, InATapeReadsItsCountsWhenItIsReplayed) {
  run_ranks(2, [](const comm::World& world) {
    graph::TapeRecorder recorder;
    const comm::Group group = world.groups().tp.recorded(recorder);
    const int me = world.rank();
    const at::Tensor in = make_rows(me, 6, 6), counts = at::tensor({1, 2}, at::kLong);
    const ExchangedRows out(5, 2);
    const RecordedTape recorded = record_tape(recorder, [&] {
      comm::exchange_rows_async(out.place(), {in, counts}, 4, out.overflow, group).wait();
    });
    EXPECT_EQ(tape_check::report(check_tape(recorded.recording())), "");
    EXPECT_TRUE(at::equal(out.counts, at::full({2}, 1 + me, at::kLong)));
    EXPECT_FALSE(out.flag());
    counts.copy_(at::tensor({4, 2 - me}, at::kLong));
    in.add_(10 * in);
    recorded.tape.replay();
    const at::Tensor wanted = me == 0 ? at::tensor({0.0, 11.0, 22.0, 33.0, 11000.0}, at::kDouble)
                                      : at::tensor({44.0, 55.0, 11044.0}, at::kDouble);
    EXPECT_TRUE(at::equal(out.rows.select(1, 0).narrow(0, 0, wanted.size(0)), wanted)) << out.rows;
    EXPECT_EQ(out.flag(), me == 0) << "eight rows for five";
  });
}

TEST(ExchangeRows, ReadBeforeTheyHaveComeAreAFinding) {
  run_ranks(2, [](const comm::World& world) {
    graph::TapeRecorder recorder;
    const comm::Group group = world.groups().tp.recorded(recorder);
    const at::Tensor in = make_rows(world.rank(), 4, 4), counts = at::full({2}, 2, at::kLong),
                     copy = at::empty({2}, at::kLong);
    const ExchangedRows out(4, 2);
    const RecordedTape recorded = record_tape(recorder, [&] {
      comm::Handle exchange = comm::exchange_rows_async(out.place(), {in, counts}, 2, out.overflow, group);
      comm::barrier(world.groups().tp);
      copy.copy_(out.counts);
      exchange.wait();
    });
    expect_finding(check_tape(recorded.recording()), tape_check::FindingKind::in_flight, "aten::copy_", "",
                   "exchange_rows on tp");
  });
}

TEST(ExchangeRows, AreCountedByTheirCapacity) {
  const auto traffic = std::make_shared<comm::Traffic>();
  run_ranks(3, {.tp = 3},
            [](const comm::World& world) {
              ExchangedRows out(9, 3);
              comm::exchange_rows_async(out.place(), {make_rows(world.rank(), 3, 9), at::ones({3}, at::kLong)}, 5,
                                        out.overflow, world.groups().tp)
                  .wait();
            },
            {.traffic = traffic});
  EXPECT_EQ(traffic->of("tp", "exchange_rows").calls, 3) << "one a rank";
  EXPECT_EQ(traffic->of("tp", "exchange_rows").bytes, 3 * (3 * 8 + 3 * 5 * 3 * 8));
}

TEST(ExchangeRows, OfARankWithoutValuesAreTold) {
  OperationRecorder recorder;
  const comm::World world = comm::make_meta_world(0, make_grid(2, {.tp = 2}), c10::kCPU, &recorder);
  const auto on_meta = at::TensorOptions(at::kMeta);
  const at::Tensor rows = at::empty({4, 3}, on_meta), counts = at::empty({2}, on_meta.dtype(at::kLong)),
                   flag = at::empty({1}, on_meta.dtype(at::kInt));
  comm::exchange_rows_async({rows.clone(), counts.clone()}, {rows, counts}, 2, flag, world.groups().tp).wait();
  EXPECT_EQ(recorder.calls().at("exchange_rows"), 1);
}

TEST(ExchangeRows, OfAnotherCapacityOrShapeAreNamed) {
  const auto cause = [](int64_t wider, int64_t more) {
    try {
      comm::run_threads(2, make_grid(2, {.tp = 2}), {std::chrono::seconds(20)}, [&](const comm::World& world) {
        const int64_t width = 3 + wider * world.rank();
        const at::Tensor counts = at::ones({2}, at::kLong), flag = at::zeros({1}, at::kInt);
        comm::exchange_rows_async({at::empty({2, width}), at::empty({2}, at::kLong)}, {at::zeros({2, width}), counts},
                                  2 + more * world.rank(), flag, world.groups().tp)
            .wait();
      });
    } catch (const std::exception& error) { return std::string(error.what()); }
    return std::string();
  };
  EXPECT_NE(cause(1, 0).find("member 1 passes rows of [4], member 0 of [3]"), std::string::npos) << cause(1, 0);
  EXPECT_NE(cause(0, 1).find("exchange_rows of up to"), std::string::npos) << cause(0, 1);
}

}  // namespace
}  // namespace metroplex::test::exchange_rows_ranks_test

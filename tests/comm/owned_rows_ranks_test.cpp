// Fetches rows into slots, and returns their gradients to the owners to be summed: threads, relayed messages, equal
// blocks, the tape.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "comm/backends/counting.h"
#include "comm/backends/owned_rows.h"
#include "support/exchange_checks.h"
#include "support/owned_rows_checks.h"
#include "support/record_tape.h"
#include "support/run_ranks.h"
#include "support/operation_recorder.h"

namespace metroplex::test::owned_rows_ranks_test {
namespace {

TEST(OwnedRows, ComeToThoseWhoWantThemAndAreAddedUpAtHome) {
  for (const int n : {2, 3, 4, 7})
    run_ranks(
        n, [](const comm::World& world) { check_owned_rows(world.groups().tp, make_owned_rows(world.groups().tp)); });
}

TEST(OwnedRows, ByMessagesAndByBlocksAreTheSame) {
  for (const int n : {2, 3, 5}) {
    run_ranks(n, [](const comm::World& world) {
      const comm::Group& group = world.groups().tp;
      comm::GroupBackend& backend = group.backend();
      const int me = group.index();
      check_owned_rows(group, {[&](const auto& out, const auto& in, const auto& owners) {
                                 return comm::Handle(comm::fetch_by_hops(backend, out, in, owners, me));
                               },
                               [&](const auto& sum, const auto& in, const auto& owners) {
                                 return comm::Handle(comm::return_by_messages(backend, sum, in, owners, me));
                               }});
      check_owned_rows(group, {[&](const auto& out, const auto& in, const auto& owners) {
                                 return comm::Handle(comm::fetch_by_blocks(backend, out, in, owners, me));
                               },
                               [&](const auto& sum, const auto& in, const auto& owners) {
                                 return comm::Handle(comm::return_by_blocks(backend, sum, in, owners, me));
                               }});
    });
  }
}

TEST(OwnedRows, SeveralTensorsAreUnderWayAtOnce) {
  for (const int n : {2, 4, 7}) {
    run_ranks(n, [](const comm::World& world) {
      const comm::Group& group = world.groups().tp;
      const auto by = [&](const auto& fetch, const auto& give_back) {
        check_several_owned_rows(group,
                                 {[&](const auto& out, const auto& in, const auto& owners) {
                                    return comm::Handle(fetch(group.backend(), out, in, owners, group.index()));
                                  },
                                  [&](const auto& sum, const auto& in, const auto& owners) {
                                    return comm::Handle(give_back(group.backend(), sum, in, owners, group.index()));
                                  }});
      };
      check_several_owned_rows(group, make_owned_rows(group));
      by(comm::fetch_by_hops, comm::return_by_messages);
      by(comm::fetch_by_blocks, comm::return_by_blocks);
    });
  }
}

// In each round a holder sends a row once, and only a row that it has; every slot gets its row.
TEST(OwnedRows, AreRelayedInAsManyRoundsAsATreeNeeds) {
  std::mt19937 draw(3);
  for (int members = 2; members < 40; ++members) {
    for (const int64_t slots : {1, 2}) {
      const int64_t owned_rows = 2;
      std::vector<int32_t> owners = random_owners(members, slots, owned_rows, 2, draw);
      if (members % 2 == 0) {
        for (size_t i = 0; i < owners.size(); i += static_cast<size_t>(slots))
          owners[i] = static_cast<int64_t>(i) / slots == 1 ? -1 : 2;  // the first row of member 1
      }
      std::map<int32_t, int> requests;
      for (const int32_t owner : owners) requests[owner] += owner >= 0;
      int max_requests = 0;
      for (const auto& [owner, times] : requests) max_requests = std::max(max_requests, times);
      const auto rounds = comm::relay_hops(owners, slots, owned_rows);
      EXPECT_EQ(rounds.size(), static_cast<size_t>(std::ceil(std::log2(max_requests + 1)))) << max_requests;
      std::map<std::pair<int, int64_t>, int32_t> has;  // received row of each member's slot
      for (const auto& round : rounds) {
        std::set<std::tuple<int, int64_t, int64_t>> senders;
        std::map<std::pair<int, int64_t>, int32_t> received;
        for (const comm::Hop& hop : round) {
          EXPECT_TRUE(senders.insert({hop.from, hop.from_slot, hop.from_slot < 0 ? hop.row : -1}).second);
          const int32_t row = hop.from_slot < 0 ? static_cast<int32_t>(hop.from * owned_rows + hop.row)
                                                : has.at({hop.from, hop.from_slot});
          received[{hop.to, hop.to_slot}] = row;
        }
        has.merge(received);
      }
      size_t filled = 0;
      for (size_t i = 0; i < owners.size(); ++i) {
        if (owners[i] < 0) continue;
        ++filled;
        EXPECT_EQ((has.at({static_cast<int>(static_cast<int64_t>(i) / slots), static_cast<int64_t>(i) % slots})),
                  owners[i]);
      }
      EXPECT_EQ(has.size(), filled) << "no other slot receives a row";
    }
  }
}

TEST(OwnedRows, MembersThatPlannedOtherwiseAreNamed) {
  std::string cause;
  try {
    comm::run_threads(2, make_grid(2, {.tp = 2}), {}, [](const comm::World& world) {
      const at::Tensor owners = at::tensor({world.rank() == 0 ? 1 : -1, 0}, at::kInt), rows = at::ones({1, 4});
      comm::fetch_rows_async(at::empty({1, 4}), rows, owners, world.groups().tp).wait();
    });
  } catch (...) { cause = comm::failure_cause(std::current_exception()); }
  EXPECT_NE(cause.find("has different slots or owners than member 0"), std::string::npos) << cause;
}

TEST(OwnedRows, InATapeReadTheirOwnersWhenItIsReplayed) {
  run_ranks(2, [](const comm::World& world) {
    graph::TapeRecorder recorder;
    const comm::Group group = world.groups().tp.recorded(recorder);
    const int me = world.rank();
    const at::Tensor owners = at::tensor({2, 0}, at::kInt), rows = make_rows(me, 2, 2), slots = poison(1);
    const at::Tensor sums = at::zeros({2, 3}, at::kDouble);
    const RecordedTape recorded = record_tape(recorder, [&] {
      comm::fetch_rows_async(slots, rows, owners, group).wait();
      comm::return_rows_async(sums, slots, owners, group).wait();
    });
    EXPECT_EQ(tape_check::report(check_tape(recorded.recording())), "");
    EXPECT_TRUE(at::equal(slots[0], make_rows(1 - me, 2, 2)[0]));
    EXPECT_TRUE(at::equal(sums[0], rows[0]));
    owners.copy_(at::tensor({3, -1}, at::kInt));
    sums.zero_();
    recorded.tape.replay();
    if (me == 0) {
      EXPECT_TRUE(at::equal(slots[0], make_rows(1, 2, 2)[1]));
      EXPECT_EQ(sums.abs().sum().item<double>(), 0);
    } else {
      EXPECT_TRUE(at::equal(sums[1], rows[1]));
      EXPECT_EQ(sums[0].abs().sum().item<double>(), 0);
    }
  });
}

TEST(OwnedRows, AreCountedAndTold) {
  const auto traffic = std::make_shared<comm::Traffic>();
  const auto both = [](const comm::Group& group, const at::TensorOptions& on) {
    const at::Tensor rows = at::empty({1, 4}, on), slots = at::empty({1, 4}, on),
                     owners =
                         on.device().is_meta() ? at::empty({2}, on.dtype(at::kInt)) : at::tensor({1, 0}, at::kInt);
    comm::fetch_rows_async(slots, rows, owners, group).wait();
    comm::return_rows_async(rows, slots, owners, group).wait();
  };
  run_ranks(2, {.tp = 2}, [&](const comm::World& world) { both(world.groups().tp, at::kFloat); },
            {.traffic = traffic});
  EXPECT_EQ(traffic->of("tp", "fetch_rows").calls, 2) << "one a rank";
  EXPECT_EQ(traffic->of("tp", "return_rows").bytes, 2 * 4 * 4);
  OperationRecorder recorder;
  const comm::World world = comm::make_meta_world(0, make_grid(2, {.tp = 2}), c10::kCPU, &recorder);
  both(world.groups().tp, at::TensorOptions(at::kMeta).dtype(at::kFloat));
  EXPECT_EQ(recorder.calls().at("fetch_rows"), 1);
  EXPECT_EQ(recorder.calls().at("return_rows"), 1);
}

}  // namespace
}  // namespace metroplex::test::owned_rows_ranks_test

// The rank tree: its edges, collectives of groups built on it, and the connections and messages of 16,384 ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <map>
#include <set>
#include <thread>

#include "comm/backends/gloo_state.h"
#include "comm/backends/counting.h"
#include "comm/backends/threads.h"
#include "comm/backends/tree.h"
#include "comm/collectives.h"
#include "support/run_ranks.h"

namespace metroplex::comm::tree_ranks_test {
namespace {

TEST(RankTree, EveryRankIsTheChildOfItsParentAndReachesRankZero) {
  for (const int size : {1, 2, 8, 9, 70, 513}) {
    SCOPED_TRACE(size);
    EXPECT_EQ(tree_parent(0), -1);
    for (int rank = 1; rank < size; ++rank) {
      const int parent = tree_parent(rank);
      ASSERT_TRUE(parent >= 0 && parent < rank);
      const std::vector<int> siblings = tree_children(parent, size);
      EXPECT_EQ(std::count(siblings.begin(), siblings.end(), rank), 1) << rank;
    }
    size_t edges = 0;
    for (int rank = 0; rank < size; ++rank) edges += tree_children(rank, size).size();
    EXPECT_EQ(edges, static_cast<size_t>(size - 1));
  }
}

TEST(RankTree, TheRanksOfANodeOfEightMeetInItsFirst) {
  for (int rank = 0; rank < 64; ++rank) {
    if (rank % 8 != 0) { EXPECT_EQ(tree_parent(rank), rank - rank % 8); }
  }
}

void on_tree(int size, const std::function<void(const Group&)>& body) {
  const Hub hub(size, {.timeout = std::chrono::seconds(30)});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<int> everyone(static_cast<size_t>(size));
      for (int i = 0; i < size; ++i) everyone[static_cast<size_t>(i)] = i;
      const auto level = [&](const std::string& name, const std::vector<int>& members) {
        return hub.backend({name, Purpose::run, members}, rank);
      };
      try {
        body(Group({"world", Purpose::run, everyone}, rank, make_tree_backend(rank, size, level)));
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
        hub.abort(rank, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TreeBackend, GathersReducesAndBroadcastsInGroupOrderForAnySize) {
  for (const int size : {2, 8, 9, 17, 70}) {
    SCOPED_TRACE(size);
    on_tree(size, [&](const Group& group) {
      const int me = group.index();
      const at::Tensor mine = at::full({2}, 1.0 / (me + 3), at::kDouble);
      double expected = 0;
      for (int i = 0; i < size; ++i) expected += 1.0 / (i + 3);  // in this order, to the last bit
      at::Tensor sum = mine.clone();
      all_reduce(sum, group);
      EXPECT_EQ(sum[1].item<double>(), expected);
      at::Tensor maximum = at::full({1}, (me * 7) % size, at::kLong);
      all_reduce(maximum, group, ReduceOp::max);
      EXPECT_LT(maximum.item<int64_t>(), size);
      const at::Tensor all = all_gather(at::full({1, 2}, me, at::kLong), 0, group);
      EXPECT_TRUE(at::equal(all, at::arange(size, at::kLong).view({size, 1}).expand({size, 2})));
      for (int root = 0; root < size; root += 5) {
        const at::Tensor token = at::full({3}, me, at::kInt);
        broadcast(token, root, group);
        EXPECT_TRUE(at::equal(token, at::full({3}, root, at::kInt))) << "from " << root;
      }
      const at::Tensor whole = at::arange(3 * size, at::kLong) * (me + 1);
      EXPECT_TRUE(at::equal(reduce_scatter(whole, 0, group),
                            (at::arange(3 * size, at::kLong) * (size * (size + 1) / 2)).narrow(0, 3 * me, 3)));
      const auto texts = gather_strings(std::string(static_cast<size_t>(me % 5), 'x') + std::to_string(me), group);
      EXPECT_EQ(texts.size(), me == 0 ? static_cast<size_t>(size) : 0u);
      for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i], std::string(i % 5, 'x') + std::to_string(i));
      EXPECT_EQ(broadcast_string(me == 0 ? "from rank 0" : "other", group), "from rank 0");
      EXPECT_EQ(broadcast_string("", group), "");
      barrier(group);
    });
  }
}

topology::RankGrid large_grid(int world, int tp, int pp) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = tp;
  parallel.pipeline_model_parallel_size = pp;
  return topology::RankGrid(world, parallel);
}

TEST(Scale, TheGroupsOfTwoThousandRanksHaveNumbersThatTellThemApart) {
  constexpr int kRanks = 2048;
  const topology::RankGrid grid = large_grid(kRanks, 4, 8);
  const GroupNumbers numbers(c10::make_intrusive<c10d::HashStore>());
  std::set<GroupSpec> groups;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::map<int, std::set<int>> peers;  // of each number, so far
    make_groups(rank, grid, [&](const GroupSpec& spec) {
      groups.insert({spec.name, spec.purpose, spec.ranks.size() > 64 ? std::vector<int>{spec.ranks[0]} : spec.ranks});
      std::set<int>& same = peers[numbers.of(spec)];
      for (const int peer : spec.ranks) {
        EXPECT_TRUE(peer == rank || same.insert(peer).second) << spec.name << " and another group, rank " << rank;
      }
      return make_counting_backend(spec.name, std::make_shared<Traffic>());
    });
    ASSERT_FALSE(testing::Test::HasFailure());
  }
  EXPECT_EQ(groups.size(), 2722u);  // docs/topology.md
}

// Connections and messages of one rank in the control plane next to NCCL: groups of host memory, and the watch.
struct Load {
  size_t connections = 0;
  int64_t bytes_sent = 0;  // of one save: a manifest per rank to rank 0, and two answers to all
  int64_t bytes_received = 0;
};

Load measure_load(int rank, int size, int64_t manifest_bytes) {
  Load load;
  std::vector<int> everyone(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) everyone[static_cast<size_t>(i)] = i;
  const auto traffic = std::make_shared<Traffic>();
  std::map<std::string, std::vector<int>> parts;
  const auto make = [&](const std::string& name, Purpose purpose) {
    return make_host_backend({name, purpose, everyone}, rank, [&](const GroupSpec& part) {
      parts[part.name] = part.ranks;
      load.connections += part.ranks.size() - 1;
      return make_counting_backend(part.name, traffic);
    });
  };
  const auto world = make("world", Purpose::run), backend = make("checkpoint", Purpose::checkpoint);
  load.connections += tree_children(rank, size).size() + (rank > 0 ? 1 : 0);
  const at::Tensor manifest = at::zeros({manifest_bytes}, at::kByte), answer = at::zeros({200}, at::kByte);
  backend->broadcast(answer, 0);
  backend->gather(rank == 0 ? at::empty({size, manifest_bytes}, at::kByte) : at::Tensor(), manifest, rank, size);
  backend->broadcast(answer, 0);
  for (const auto& [name, members] : parts) {
    load.bytes_sent += traffic->of(name, "send").bytes;
    load.bytes_received += traffic->of(name, "recv").bytes;
    const int64_t down = traffic->of(name, "broadcast").bytes;
    if (members.front() == rank) load.bytes_sent += down * static_cast<int64_t>(members.size() - 1);
    else load.bytes_received += down;
  }
  return load;
}

// These figures are in docs/topology.md.
TEST(Scale, WhatSixteenThousandRanksOpenAndSendIsBounded) {
  constexpr int kRanks = 16384;
  constexpr int64_t kManifest = 4096;
  const Load first = measure_load(0, kRanks, kManifest);
  EXPECT_EQ(first.connections, 93u);
  EXPECT_EQ(first.bytes_received, (kRanks - 1) * kManifest);  // minimum for rank 0
  EXPECT_EQ(first.bytes_sent, 31 * 2 * 200);
  size_t maximum = 0;
  int64_t total_sent = 0;
  std::map<size_t, int> ranks_with;
  for (int rank = 0; rank < kRanks; rank += rank % 8 == 1 ? 7 : 1) {  // ranks 2 to 7 of a node equal its rank 1
    const Load load = measure_load(rank, kRanks, kManifest);
    const int alike = rank % 8 == 1 ? 7 : 1;
    maximum = std::max(maximum, load.connections);
    ranks_with[load.connections] += alike;
    total_sent += alike * load.bytes_sent;
    if (rank % 8 == 1) { EXPECT_EQ(load.bytes_sent, kManifest); }
    if (rank % 64 == 8) { EXPECT_EQ(load.bytes_sent, 8 * kManifest + 7 * 2 * 200); }
  }
  EXPECT_EQ(maximum, 93u);
  EXPECT_EQ(ranks_with.at(15), kRanks / 8 * 7);               // its node's groups, and its parent
  EXPECT_EQ(ranks_with.at(36), kRanks / 64 * 7);              // the first ranks of seven nodes in eight
  EXPECT_LT(total_sent, 5 * kRanks * (kManifest + 2 * 200));  // a text is forwarded at most five times
}

}  // namespace
}  // namespace metroplex::comm::tree_ranks_test

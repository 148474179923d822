// Every operation of a group and its failures between processes over NCCL, eager and captured. The ranks share GPUs
// if there are fewer GPUs than ranks. The same checks run over gloo on the CPU, so that they are tested without a
// GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "comm/collectives.h"
#include "graph/cuda_graph.h"
#include "graph/replay_watch.h"
#include "support/gpu.h"
#include "support/notes.h"
#include "support/run_processes.h"

namespace metroplex::comm::collectives_nccl_test {
namespace {

using namespace std::chrono_literals;

test::ProcessesOptions nccl_options(int num_ranks) {
  test::ProcessesOptions options;
  options.process.backend = ProcessBackend::nccl;
  options.process.timeout = 60s;
  const int num_gpus = device::device_count();
  options.process.shares_gpu = num_gpus < num_ranks;
  if (const auto launch = launch_from_environment()) options.process.gpu = launch->local_rank % num_gpus;
  options.process.on_stuck = [](const std::exception_ptr& failure) {
    const std::string cause = failure_cause(failure) + "\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, cause.data(), cause.size());
    ::_exit(is_peer_failure(failure) ? 4 : 5);
  };
  return options;
}

// Four numbers for each member. Small integers are exact in any order of the sums.
at::Tensor member_input(int member, int size, int round) {
  return at::remainder(at::arange(4 * size, at::kDouble) * (member + 2) + round, 11);
}

// Static inputs of one member. Every member sends two rows to each other one; its slot requests row 0 of the next
// member, which owns two rows.
struct Inputs {
  at::Tensor x, counts, owners;
  Inputs(const Group& group, at::Device device)
      : x(at::zeros({4 * group.size()}, at::TensorOptions().dtype(at::kDouble).device(device))),
        counts(at::full({group.size()}, 2, at::TensorOptions().dtype(at::kLong).device(device))) {
    owners = at::remainder(at::arange(1, group.size() + 1), group.size()).mul(2).to(at::kInt).to(device);
  }
};
using Results = std::map<std::string, at::Tensor>;

Results call_collectives(const Group& group, const Inputs& inputs) {
  const at::Tensor& x = inputs.x;
  const int size = group.size(), last = size - 1;
  Results results;
  results["sum"] = x.clone();
  all_reduce(results["sum"], group);
  results["max"] = x.clone();
  all_reduce(results["max"], group, ReduceOp::max);
  results["all_gather"] = all_gather(x, 0, group);
  results["reduce_scatter"] = reduce_scatter(x, 0, group);
  results["broadcast"] = x.clone();
  broadcast(results["broadcast"], last, group);
  const std::vector<int64_t> fours(static_cast<size_t>(size), 4);
  results["all_to_all"] = all_to_all(x, fours, fours, group);
  // Two all-reduces in flight.
  const at::Tensor first = x + 1, second = x + 2;
  Handle one = all_reduce_async(first, group), two = all_reduce_async(second, group);
  two.wait();
  one.wait();
  results["overlapped"] = first + second;
  return results;
}

Results call_rows(const Group& group, const Inputs& inputs) {
  const at::Tensor& x = inputs.x;
  const int size = group.size(), me = group.index(), next = (me + 1) % size, previous = (me + size - 1) % size;
  Results results;
  const at::Tensor from_previous = at::empty_like(x), from_next = at::empty_like(x);
  batch_p2p({{true, x, next, 0}, {false, from_previous, previous, 0}}, group).wait();
  const at::Tensor doubled = x * 2;
  batch_p2p({{true, doubled, previous, 1}, {false, from_next, next, 1}}, group).wait();
  results["p2p forward"] = from_previous;
  results["p2p backward"] = from_next;
  const CountedRows sent{x.narrow(0, 0, 2 * size).view({-1, 1}), inputs.counts};
  const CountedRows received{at::zeros_like(sent.rows), at::zeros_like(inputs.counts)};
  const at::Tensor overflow = at::zeros({1}, x.options().dtype(at::kInt));
  exchange_rows_async(received, sent, 2, overflow, group).wait();
  results["exchange_rows"] = received.rows.flatten();
  results["exchange_rows counts"] = received.counts.to(at::kDouble);
  results["exchange_rows overflow"] = overflow.to(at::kDouble);
  const at::Tensor rows = x.narrow(0, 0, 8).view({2, 4}), slot = at::zeros({1, 4}, x.options());
  fetch_rows_async(slot, rows, inputs.owners, group).wait();
  results["fetch_rows"] = slot.flatten();
  const at::Tensor sum = at::zeros({2, 4}, x.options());
  return_rows_async(sum, slot, inputs.owners, group).wait();
  results["return_rows"] = sum.flatten();
  return results;
}

Results call_all(const Group& group, const Inputs& inputs) {
  Results results = call_collectives(group, inputs);
  results.merge(call_rows(group, inputs));
  return results;
}

Results expected_results(const Group& group, int round) {
  const int size = group.size(), me = group.index(), next = (me + 1) % size, previous = (me + size - 1) % size;
  std::vector<at::Tensor> inputs, to_me, rows_to_me;
  for (int member = 0; member < size; ++member) {
    inputs.push_back(member_input(member, size, round));
    to_me.push_back(inputs.back().narrow(0, 4 * me, 4));
    rows_to_me.push_back(inputs.back().narrow(0, 2 * me, 2));
  }
  const at::Tensor stacked = at::stack(inputs), sum = stacked.sum(0);
  const auto at_member = [&](int member) { return inputs[static_cast<size_t>(member)]; };
  const at::Tensor returned = at::zeros({8}, at::kDouble);
  returned.narrow(0, 0, 4).copy_(at_member(me).narrow(0, 0, 4));
  return {{"sum", sum},
          {"max", stacked.amax(0)},
          {"all_gather", at::cat(inputs)},
          {"reduce_scatter", sum.narrow(0, 4 * me, 4)},
          {"broadcast", inputs.back()},
          {"all_to_all", at::cat(to_me)},
          {"overlapped", 2 * sum + 3 * size},
          {"p2p forward", at_member(previous)},
          {"p2p backward", 2 * at_member(next)},
          {"exchange_rows", at::cat(rows_to_me)},
          {"exchange_rows counts", at::full({size}, 2, at::kDouble)},
          {"exchange_rows overflow", at::zeros({1}, at::kDouble)},
          {"fetch_rows", at_member(next).narrow(0, 0, 4)},
          {"return_rows", returned}};
}

void expect_results(const Results& results, const Group& group, int round) {
  const Results expected = expected_results(group, round);
  EXPECT_EQ(results.size(), expected.size());
  for (const auto& [name, value] : expected)
    EXPECT_TRUE(at::equal(results.at(name).cpu(), value)) << name << " in round " << round << "\n"
                                                          << results.at(name) << "\n"
                                                          << value;
}

struct Ranks {
  bool gpu;
  int count;
};

struct Processes : testing::TestWithParam<Ranks> {
  void run(const RankBody& body) {
    if (GetParam().gpu) MPX_NEED_GPU();
    const int count = GetParam().count;
    const auto result = GetParam().gpu ? test::run_processes(count, {.dp = count}, body, nccl_options(count))
                                       : test::run_processes(count, {.dp = count}, body);
    if (result) { EXPECT_EQ(result->rank, -1) << result->message; }
  }
};

TEST_P(Processes, CallEveryOperation) {
  run([](const World& world) {
    const Group& group = world.groups().dp;
    const Inputs inputs(group, world.device());
    for (int round = 0; round < 3; ++round) {
      inputs.x.copy_(member_input(group.index(), group.size(), round));
      expect_results(call_all(group, inputs), group, round);
    }
  });
}

TEST_P(Processes, ReplayEveryOperation) {
  run([](const World& plain) {
    const auto device = graph::make_graph_device(plain.device());
    const World world = device->recorder() != nullptr ? plain.recorded(*device->recorder()) : plain;
    const Group& group = world.groups().dp;
    const Inputs inputs(group, world.device());
    const auto graph = device->make_graph(device->make_pool());
    Results results;
    const auto step = [&] { results = call_all(group, inputs); };
    device->run_on_capture_stream(step);
    barrier(world.groups().world);
    graph::capture(*graph, step);
    for (int round = 0; round < 3; ++round) {
      inputs.x.copy_(member_input(group.index(), group.size(), round));
      graph->replay();
      expect_results(results, group, round);
    }
    graph->reset();
  });
}

TEST_P(Processes, OverlapGroupsOfTwoPurposes) {
  run([](const World& world) {
    const std::vector<int>& ranks = world.groups().world.ranks();
    const Group rows = world.make_group({"both", Purpose::experts, ranks});
    const Group sums = world.make_group({"both", Purpose::layers, ranks});
    const auto options = at::TensorOptions().dtype(at::kDouble).device(world.device());
    const at::Tensor first = at::full({2}, 1.0, options), second = at::full({2}, 10.0, options);
    Handle on_rows = all_reduce_async(first, rows), on_sums = all_reduce_async(second, sums);
    on_sums.wait();
    on_rows.wait();
    EXPECT_TRUE(at::equal(first.cpu(), at::full({2}, 1.0 * world.size(), at::kDouble)));
    EXPECT_TRUE(at::equal(second.cpu(), at::full({2}, 10.0 * world.size(), at::kDouble)));
  });
}

INSTANTIATE_TEST_SUITE_P(On, Processes,
                         testing::Values(Ranks{false, 2}, Ranks{false, 4}, Ranks{true, 2}, Ranks{true, 4}),
                         [](const auto& test) {
                           return std::string(test.param.gpu ? "Nccl" : "Gloo") + std::to_string(test.param.count);
                         });

// Adds until this rank is ended.
[[noreturn]] void add_forever(const World& world) {
  const at::Tensor x = at::ones({1 << 16}, at::TensorOptions().device(world.device()));
  while (true) {
    all_reduce(x, world.groups().dp);
    x.cpu();
  }
}

TEST(NcclFailure, AKilledRankIsNamed) {
  MPX_NEED_GPU();
  const auto result = test::run_processes(
      2, {.dp = 2},
      [](const World& world) {
        barrier(world.groups().world);
        std::thread killer([&] {
          if (world.rank() != 1) return;
          std::this_thread::sleep_for(2s);
          ::raise(SIGKILL);
        });
        add_forever(world);
      },
      nccl_options(2));
  if (!result) return;
  EXPECT_EQ(result->rank, 1) << result->message;
  test::expect_contains(result->message, "rank 1 (tp 0 pp 0 dp 1) failed");
}

// Rank 1 replays once, rank 0 twice.
TEST(NcclFailure, AReplayWithoutPeerNamesItsCollective) {
  MPX_NEED_GPU();
  test::ProcessesOptions options = nccl_options(2);
  options.grace = 30s;
  const auto result = test::run_processes(
      2, {.dp = 2},
      [](const World& plain) {
        const auto watch = graph::make_replay_watch(plain.device(), 5s, plain.end_run());
        const auto device = graph::make_graph_device(plain.device(), watch.get());
        const World world = plain.with_recorded_groups(*watch);
        const auto graph = device->make_graph(device->make_pool());
        const at::Tensor x = at::ones({1 << 16}, at::TensorOptions().device(world.device()));
        const auto step = [&] { all_reduce(x, world.groups().dp); };
        device->run_on_capture_stream(step);
        barrier(world.groups().world);
        watch->set_step("iteration 1");
        graph::capture(*graph, step);
        watch->set_step("iteration 2");
        if (world.rank() == 1) std::this_thread::sleep_for(60s);
        graph->replay();
        x.cpu();
      },
      options);
  if (!result) return;
  EXPECT_EQ(result->rank, 0) << result->message;
  test::expect_contains(result->message, "captured step of iteration 2: all_reduce of group");
}

}  // namespace
}  // namespace metroplex::comm::collectives_nccl_test

// Graph instances for all schedules and sizes: against an independent account of buffer lifetimes, against Megatron's
// sets, and with every wrong choice of an instance.
#include "plan/graph_exits.h"
#include "plan/graph_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "draw/schedule.h"
#include "plan/megatron_order.h"
#include "plan/pipeline_table.h"
#include "plan/schedules/registry.h"
#include "plan/verify.h"
#include "support/error_of.h"
#include "support/graphs_without_sends.h"
#include "support/megatron_captures.h"

namespace metroplex::plan::graph_plan_test {
namespace {

using Key = std::pair<int, int>;  // (chunk, microbatch)

// Lifetime rules of instances. A pass holds its instance until its last compute action. An output holds it until its
// send has been waited for, at the latest when its gradient arrives. An input's gradient is copied for its send; with
// one stage it holds the instance until the neighboring chunk's backward. The executor waits for a call before using
// its result and allows two sends in flight.
class Account {
 public:
  Account(const PipelineTable& table, int rank) : table_(table), actions_(table.ranks[static_cast<size_t>(rank)]) {
    for (size_t i = 0; i < actions_.size();) {
      const size_t end = is_p2p(actions_[i].kind) ? call_end(actions_, i) : i + 1;
      for (size_t a = i; a < end; ++a) call_of_[{actions_[a].kind, actions_[a].chunk, actions_[a].microbatch}] = i;
      for (size_t a = i; a < end; ++a) step(actions_[a], static_cast<long>(i));
      i = end;
    }
    for (const Sent& sent : under_way_) {
      if (sent.output) hold(sent.key, 2 * static_cast<long>(actions_.size()));
    }
  }

  std::map<Key, long> begin, end;  // 2 * action, + 1 during its computation

 private:
  struct Sent {
    Key key;
    size_t call;
    bool output;  // false: a gradient, whose copy holds nothing
  };

  void hold(Key key, long until) { end[key] = std::max(end[key], until); }
  void step(const Action& action, long at) {
    const Key key{action.chunk, action.microbatch};
    if (is_compute(action.kind)) {
      if (action.kind != ActionKind::weight) wait_for_needs(action, at);
      if (action.kind == ActionKind::forward) begin[key] = 2 * at + 1;
      hold(key, action.kind == ActionKind::forward ? -1 : 2 * at + 1);
      const bool by_hand = table_.num_stages == 1 && action.kind != ActionKind::weight;
      if (by_hand && action.kind == ActionKind::backward && action.chunk + 1 < table_.num_chunks)
        hold({action.chunk + 1, action.microbatch}, 2 * at + 1);
      if (by_hand && action.kind == ActionKind::forward && action.chunk > 0)
        hold({action.chunk - 1, action.microbatch}, 2 * at + 1);
    } else if (action.kind == ActionKind::send_backward || action.kind == ActionKind::free) {
      const ActionKind kind = action.kind == ActionKind::free ? ActionKind::send_forward : action.kind;
      under_way_.push_back(
          {key, call_of_.at({kind, action.chunk, action.microbatch}), action.kind == ActionKind::free});
      drop(at);
      while (under_way_.size() > 2) {
        done_.insert(under_way_.front().call);
        drop(at);
      }
    }
  }
  void wait_for_needs(const Action& action, long at) {
    const bool forward = action.kind == ActionKind::forward;
    const auto received = call_of_.find(
        {forward ? ActionKind::recv_forward : ActionKind::recv_backward, action.chunk, action.microbatch});
    if (received != call_of_.end()) done_.insert(received->second);
    const auto sent = call_of_.find({ActionKind::send_forward, action.chunk, action.microbatch});
    if (!forward && sent != call_of_.end()) done_.insert(sent->second);
    drop(at);
  }
  void drop(long at) {
    std::erase_if(under_way_, [&](const Sent& sent) {
      if (!done_.contains(sent.call)) return false;
      if (sent.output) hold(sent.key, 2 * at);
      return true;
    });
  }

  const PipelineTable& table_;
  const std::vector<Action>& actions_;
  std::map<std::tuple<ActionKind, int, int>, size_t> call_of_;
  std::set<size_t> done_;
  std::deque<Sent> under_way_;
};

// Calls visit(table) for every schedule that exists for these sizes.
template <class Visit>
void for_all_tables(int most_stages, int most_chunks, int most_microbatches, const Visit& visit) {
  for (int stages = 1; stages <= most_stages; ++stages) {
    for (int chunks = 1; chunks <= most_chunks; ++chunks) {
      for (int microbatches = 1; microbatches <= most_microbatches; ++microbatches) {
        for (const bool forward_only : {false, true}) {
          const auto build = [&](const char* name, int group = 0, bool overlap = false) {
            visit(build_schedule(name, {stages, chunks, microbatches, group, forward_only, overlap}));
          };
          if (stages == 1) build("none");
          if (chunks == 1) {
            build("gpipe");
            build("1f1b");
          }
          for (const int group : {stages, stages + 1, 2 * stages}) {
            const MicrobatchShape shape{stages, chunks, true, microbatches, group};
            if (stages == 1 || (group > stages && !interleaved_refusal(shape).empty())) continue;
            build("interleaved", group, false);
            build("interleaved", group, true);
          }
        }
      }
    }
  }
}

GraphLayers one_layer_a_chunk(const PipelineTable& table) {
  return alike_layers(std::vector<int>(static_cast<size_t>(table.num_chunks), 1));
}

std::string refusal(const GraphPlan& plan, const PipelineTable& table, int rank) {
  return test::catch_error([&] { verify_graphs(plan, table, rank); });
}

TEST(GraphPlan, HasAsManyInstancesAsPassesHold) {
  int tables = 0, shared = 0;
  for_all_tables(8, 4, 16, [&](const PipelineTable& table) {
    ++tables;
    for (int rank = 0; rank < table.num_stages; ++rank) {
      const Account account(table, rank);
      const GraphPlan plan = plan_graphs(table, rank, one_layer_a_chunk(table));
      ASSERT_EQ(refusal(plan, table, rank), "");
      int most = 0;
      for (const auto& [key, begin] : account.begin) {
        int held = 1;
        for (const auto& [other, other_begin] : account.begin)
          held += other_begin < begin && account.end.at(other) >= begin;
        most = std::max(most, held);
      }
      ASSERT_EQ(plan.num_instances, most) << table.name << " pp " << table.num_stages << " vpp " << table.num_chunks
                                          << " microbatches " << table.num_microbatches << " rank " << rank;
      for (const auto& chunks : plan.chunks_of_instance()) shared += chunks.size() > 1;
    }
  });
  EXPECT_GT(tables, 2000);
  EXPECT_GT(shared, 1000);
}

// Every pass gets every other instance in turn: the check must reject exactly the instances that are still held.
TEST(GraphPlan, EveryInstanceThatIsTakenTooEarlyIsFoundAndNoOther) {
  int found = 0, fine = 0, of_another_chunk = 0;
  const auto try_all = [&](const PipelineTable& table, int rank) {
    const Account account(table, rank);
    const GraphPlan good = plan_graphs(table, rank, one_layer_a_chunk(table));
    const auto collides = [&](const Key& pass, int instance, int& others) {
      bool any = false;
      for (const auto& [other, begin] : account.begin) {
        if (other == pass ||
            good.instance_of[static_cast<size_t>(other.first)][static_cast<size_t>(other.second)] != instance)
          continue;
        const bool before = begin < account.begin.at(pass);
        const bool overlaps =
            before ? account.end.at(other) >= account.begin.at(pass) : account.end.at(pass) >= begin;
        any |= overlaps;
        others += overlaps && other.first != pass.first;
      }
      return any;
    };
    for (const auto& [pass, begin] : account.begin) {
      for (int instance = 0; instance < good.num_instances; ++instance) {
        GraphPlan wrong = good;
        int& chosen = wrong.instance_of[static_cast<size_t>(pass.first)][static_cast<size_t>(pass.second)];
        if (instance == chosen) continue;
        chosen = instance;
        const std::string text = refusal(wrong, table, rank);
        const bool overwritten = text.find("is overwritten by the forward") != std::string::npos;
        const bool wanted = collides(pass, instance, of_another_chunk);
        ASSERT_EQ(overwritten, wanted) << table.name << " rank " << rank << " chunk " << pass.first << " microbatch "
                                       << pass.second << ": " << text;
        ++(wanted ? found : fine);
      }
    }
  };
  for_all_tables(4, 2, 9, [&](const PipelineTable& table) {
    for (int rank = 0; rank < table.num_stages; ++rank) try_all(table, rank);
  });
  EXPECT_GT(found, 10000);
  EXPECT_GT(fine, 100);
  EXPECT_GT(of_another_chunk, 1000);
}

TEST(GraphPlan, ASendThatIsNotCountedIsFoundWithItsBuffer) {
  const auto table = build_schedule("1f1b", {3, 1, 4, 0, true});  // an evaluation: outputs only
  EXPECT_EQ(
      refusal(test::plan_graphs_without_sends(table, 0, one_layer_a_chunk(table)), table, 0),
      "[plan] graphs of pipeline rank 0: the output in instance 0 (microbatch 0 of chunk 0) is overwritten by the "
      "forward of microbatch 1 of chunk 0 (action 3) before its last read: its send_forward, waited for in "
      "action 8, free of microbatch 2 chunk 0; plan another instance for it");
  EXPECT_EQ(refusal(plan_graphs(table, 0, one_layer_a_chunk(table)), table, 0), "");
}

// Megatron shares static inputs over chunks as we share instances: as many as live passes.
TEST(GraphPlan, HasMegatronsSetsUnderEverySchedule) {
  for_all_tables(8, 4, 16, [&](const PipelineTable& table) {
    if (table.forward_only) return;
    for (int rank = 0; rank < table.num_stages; ++rank) {
      const GraphLayers layers = one_layer_a_chunk(table);
      const MegatronSets theirs = megatron_sets(capture_order(table, rank), layers, table.num_microbatches);
      const GraphPlan ours = plan_graphs(table, rank, layers);
      ASSERT_EQ(ours.num_instances, theirs.num_sets);
      ASSERT_EQ(ours.num_instances, peak_in_flight(capture_order(table, rank)));
      if (table.num_chunks == 1) { ASSERT_EQ(ours.instance_of[0], theirs.set_of_forward); }
    }
  });
}

// An output whose gradient has arrived was received, so under 1F1B no send holds an instance.
TEST(GraphPlan, OfOneForwardOneBackwardHasTheWarmUpAndOneMore) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int microbatches = 1; microbatches <= 16; ++microbatches) {
      const auto table = build_schedule("1f1b", {stages, 1, microbatches});
      for (int rank = 0; rank < stages; ++rank) {
        const auto counts = count_warmup({stages, 1, false, microbatches}, rank);
        EXPECT_EQ(plan_graphs(table, rank, one_layer_a_chunk(table)).num_instances,
                  counts.warmup + (counts.remaining > 0 ? 1 : 0));
      }
    }
  }
}

// Every backward defers its weight gradient to an action `later` passes after it.
PipelineTable with_weights(const PipelineTable& table, size_t later) {
  PipelineTable split = table;
  split.live_activation_bounds.clear();  // those of the schedule end at the backward
  for (auto& actions : split.ranks) {
    std::vector<Action> list;
    std::deque<Action> owed;
    for (const Action& action : actions) {
      list.push_back(action);
      if (action.kind != ActionKind::backward) continue;
      owed.push_back({ActionKind::weight, action.microbatch, action.chunk});
      if (owed.size() <= later) continue;
      list.push_back(owed.front());
      owed.pop_front();
    }
    list.insert(list.end(), owed.begin(), owed.end());
    actions = std::move(list);
  }
  return split;
}

TEST(GraphPlan, HoldsAnInstanceUntilASplitWeightGradientIsDone) {
  const auto whole = build_schedule("1f1b", {4, 1, 12});
  for (const size_t later : {size_t{0}, size_t{1}, size_t{3}}) {
    const auto split = with_weights(whole, later);
    verify(split);
    for (int rank = 0; rank < 4; ++rank) {
      const GraphLayers layers = alike_layers({2});
      const GraphPlan plan = plan_graphs(split, rank, layers);
      EXPECT_EQ(plan.num_instances, plan_graphs(whole, rank, layers).num_instances + static_cast<int>(later));
      EXPECT_EQ(plan.num_graphs(), 3 * 2 * plan.num_instances);
      EXPECT_EQ(refusal(plan, split, rank), "");
      if (later == 0) continue;
      GraphPlan wrong = plan;
      wrong.instance_of = plan_graphs(whole, rank, layers).instance_of;
      const std::string text = refusal(wrong, split, rank);
      EXPECT_NE(text.find("before its last read: its weight in action"), std::string::npos) << text;
    }
  }
}

TEST(GraphPlan, CapturesLayersOfChunksOfDifferentDepthInTheTablesOrder) {
  const auto table = with_weights(build_schedule("interleaved", {2, 2, 2}), 0);
  const GraphPlan plan = plan_graphs(table, 1, alike_layers({1, 2}));
  std::string text;
  for (const GraphCapture& capture : plan.captures) {
    text += std::string(1, "FBW"[static_cast<int>(capture.kind)]) + std::to_string(capture.chunk) +
            std::to_string(capture.layer) + std::to_string(capture.instance) + " ";
  }
  EXPECT_EQ(plan.num_instances, 3);
  EXPECT_EQ(text, "F000 F001 F102 F112 B112 B102 W112 W102 B000 W000 B001 W001 ");
  EXPECT_EQ(plan.num_graphs(), 3 * (2 * 1 + 1 * 2));
  EXPECT_ANY_THROW(plan_graphs(table, 1, alike_layers({1})));
}

TEST(GraphPlan, AnyOtherPlanThanTheTablesIsRefusedByWhatIsWrong) {
  const auto table = build_schedule("1f1b", {2, 1, 4});
  const GraphPlan good = plan_graphs(table, 0, alike_layers({2}));
  const auto refused = [&](const auto& change, const char* words) {
    GraphPlan plan = good;
    change(plan);
    const std::string text = refusal(plan, table, 0);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  EXPECT_EQ(refusal(good, table, 0), "");
  refused([](auto& p) { p.instance_of.emplace_back(); }, "the plan is for 2 chunks, the table for 1");
  refused([](auto& p) { p.instance_of[0].pop_back(); }, "instances for 3 microbatches of 4");
  refused([](auto& p) { p.instance_of[0][2] = 2; }, "instance 2 of chunk 0 is none of 2");
  refused([](auto& p) { p.instance_of[0][2] = -1; }, "instance -1 of chunk 0 is none of 2");
  refused([](auto& p) { p.num_instances = 3; }, "no microbatch takes instance 2");
  refused([](auto& p) { std::swap(p.captures[0], p.captures[1]); }, "must be captured in microbatch 0, as capture 0");
  refused([](auto& p) { p.captures.pop_back(); }, "must be captured in microbatch 1, as capture 7");
  refused([](auto& p) { p.captures.push_back(p.captures[0]); }, "1 captures belong to no instance's first pass");
  refused([](auto& p) { p.captures[2].microbatch = 3; }, "must be captured in microbatch 1, as capture 2");
}

// A chunk without captured layers uses no instance.
TEST(GraphPlan, ChunksWithoutLayersTakeNoInstance) {
  const auto table = build_schedule("interleaved", {2, 2, 4});
  const GraphPlan plan = plan_graphs(table, 0, alike_layers({0, 1}));
  EXPECT_EQ(refusal(plan, table, 0), "");
  EXPECT_EQ(plan.instance_of[0], std::vector<int>(4, -1));
  EXPECT_EQ(plan_graphs(table, 0, alike_layers({0, 0})).num_instances, 0);
  EXPECT_LT(plan.num_instances, plan_graphs(table, 0, alike_layers({1, 1})).num_instances);
}

// Chunks of different depth share instances unless it takes more memory.
TEST(GraphPlan, DeepChunksDoNotEnlargeInstancesOfShallowOnes) {
  const auto table = build_schedule("interleaved", {4, 2, 32});
  const auto layers_held = [&](const std::vector<int>& layers) {
    GraphLayers signatures = alike_layers(layers);
    const GraphPlan plan = plan_graphs(table, 0, signatures);
    EXPECT_EQ(refusal(plan, table, 0), "");
    return graph_bytes(plan, signatures, {{0, {{1}, {1}}}}).inputs;
  };
  EXPECT_EQ(layers_held({1, 1}), 11) << "live passes";
  EXPECT_EQ(layers_held({4, 4}), 4 * 11);
  EXPECT_EQ(layers_held({4, 1}), 4 * 8 + 1 * 4) << "the instances of each chunk alone";
  EXPECT_EQ(layers_held({4, 3}), 4 * 11);
}

// The plan prefers an instance with graphs of the chunk, so that successive microbatches capture nothing again.
TEST(GraphPlan, ReusesGraphsOfTheSameChunk) {
  const auto table = build_schedule("none", {1, 2, 8});
  const GraphPlan plan = plan_graphs(table, 0, alike_layers({1, 1}));
  EXPECT_EQ(plan.num_instances, 2);
  EXPECT_EQ(plan.num_graphs(), 2 * 2);
}

TEST(GraphOrder, OfLayersInTurnsFollowsChunksOfDifferentDepth) {
  const auto layers = [](const std::vector<int>& order, const std::vector<int>& depth, bool split) {
    return overlap_layer_order(order, depth, split).order;
  };
  using Order = std::vector<double>;
  EXPECT_EQ(layers({1, 2, -2, 1, -1, -1}, {1, 2}, true), (Order{1, 2, 3, 1, -3, -3.5, -2, -2.5, -1, -1.5, -1, -1.5}));
  EXPECT_EQ(layers({1, 2, -2, 1, -1, -1}, {1, 2}, false), (Order{1, 2, 3, 1, -3, -2, -1, -1}));
  // The last layer's weight gradient waits for the rest of a longer forward.
  EXPECT_EQ(layers({2, 1, -1, 2, -2, -2}, {1, 3}, true),
            (Order{2, 3, 4, 1, 2, -1, 3, 4, -1.5, -4, -4.5, -3, -3.5, -2, -2.5, -4, -4.5, -3, -3.5, -2, -2.5}));
  EXPECT_EQ(layers({1, 1, -1, 1, -1, -1}, {0}, true), Order{});
}

TEST(GraphOrder, RefusesABackwardBeforeItsForward) {
  EXPECT_ANY_THROW(megatron_sets({1, -2, 2, -1}, alike_layers({1, 1}), 1));
}

TEST(GraphOrder, SetsOfAnotherSignatureAreNotTaken) {
  const std::vector<int> order{1, 2, -2, -1, 1, 2, -2, -1};
  EXPECT_EQ(megatron_sets(order, GraphLayers{{{0}, {0}}}, 2).num_sets, 2);
  const MegatronSets own = megatron_sets(order, GraphLayers{{{0}, {1, 1}}}, 2);
  EXPECT_EQ(own.num_sets, 3);
  EXPECT_EQ(own.set_of_forward, (std::vector<int>{0, 0, 1, 2, 1, 2}));
  EXPECT_EQ(megatron_sets(order, GraphLayers{{{0}, {0, 1}}}, 2).set_of_forward, (std::vector<int>{0, 1, 1, 2, 0, 2}));
}

TEST(GraphOrder, ASetIsNeverSharedByTwoForwardsInFlight) {
  for (const int chunks : {1, 2, 3}) {
    const auto order = table_to_order((chunks - 1) * 4 + 1, chunks, schedule_table(8, chunks, 4));
    const auto sets = megatron_sets(order, alike_layers(std::vector<int>(static_cast<size_t>(chunks), 1)), 8);
    EXPECT_EQ(sets.num_sets, peak_in_flight(order));
    std::vector<int> owner(static_cast<size_t>(sets.num_sets), -1), forwards(static_cast<size_t>(chunks), 0);
    std::vector<int> backwards(forwards);
    for (const int entry : order) {
      const int chunk = std::abs(entry) - 1;
      auto& next = (entry > 0 ? forwards : backwards)[static_cast<size_t>(chunk)];
      const int forward = chunk * 8 + next++;
      int& holder = owner[static_cast<size_t>(sets.set_of_forward[static_cast<size_t>(forward)])];
      EXPECT_EQ(holder, entry > 0 ? -1 : forward);
      holder = entry > 0 ? forward : -1;
    }
  }
}

// The published tables of docs/cuda_graphs.md, whose sizes are pp x layers x input bytes.
TEST(GraphNumbers, AreThoseOfThePublishedTables) {
  constexpr int64_t kInput = int64_t{4096} * 1 * 2048 * 2, kMiB = 1 << 20;
  EXPECT_EQ(kInput, 16 * kMiB);
  const auto numbers = [](int stages, int microbatches, int layers, int rank) {
    const auto table = build_schedule("auto", {stages, 1, microbatches});
    const GraphLayers captured = alike_layers({layers});
    return draw::graph_numbers(plan_graphs(table, rank, captured), table, rank, captured, kInput);
  };
  // Without a pipeline: 2 x layers, and memory proportional to the layers.
  for (const int microbatches : {1, 8}) {
    EXPECT_EQ(numbers(1, microbatches, 12, 0).graphs, 2 * 12);
    EXPECT_EQ(numbers(1, microbatches, 12, 0).megatron_graphs, 2 * 12);
    EXPECT_EQ(numbers(1, microbatches, 12, 0).bytes.inputs, 12 * kInput);
  }
  // With a pipeline: Megatron's 2 x layers x microbatches, and the bound 2 x layers x pp, which the first rank's sets
  // reach.
  for (const int microbatches : {4, 8, 64}) {
    const draw::GraphNumbers first = numbers(4, microbatches, 8, 0), last = numbers(4, microbatches, 8, 3);
    EXPECT_EQ(first.megatron_graphs, 2 * 8 * microbatches);
    EXPECT_EQ(first.bound, 2 * 8 * 4);
    EXPECT_EQ(first.graphs, first.bound);
    EXPECT_EQ(last.graphs, 2 * 8 * 1);
    EXPECT_EQ(first.bytes.inputs, 4 * 8 * kInput);
    EXPECT_EQ(first.megatron_inputs, first.bytes.inputs);
  }
  // 128 MB to 1 GB of static inputs: pp x layers of 8 to 64.
  EXPECT_EQ(numbers(4, 8, 2, 0).bytes.inputs, 128 * kMiB);
  EXPECT_EQ(numbers(8, 16, 8, 0).bytes.inputs, 1024 * kMiB);
  // 1 to 3 GB after a router and its preprocessing, for pp x layers of 21 to 60. These are hidden states, residual
  // and a shared expert's result of the input's size, probabilities in fp32 and a routing map of 128 experts.
  constexpr int64_t kStore = 3 * kInput + 4096 * 128 * (4 + 1);
  EXPECT_GT(21 * kStore, 1024 * kMiB);
  EXPECT_LT(60 * kStore, 3 * 1024 * kMiB);
}

TEST(GraphNumbers, CountBuffersOfEveryKind) {
  const auto table = build_schedule("1f1b", {2, 1, 4});
  const GraphLayers layers{{{0, 0, 7}}};  // two signatures
  const GraphPlan plan = plan_graphs(table, 0, layers);
  // A layer whose result is three tensors, and one that consumes them.
  const std::map<int, GraphTensors> tensors{{0, {{10}, {10, 4, 2}}}, {7, {{10, 4, 2}, {100}}}};
  const GraphBytes bytes = graph_bytes(plan, layers, tensors);
  EXPECT_EQ(plan.num_instances, 2);
  EXPECT_EQ(bytes.inputs, 2 * (10 + 10 + 16));
  EXPECT_EQ(bytes.results, 2 * (16 + 16 + 100));
  EXPECT_EQ(bytes.gradients, 16 + 100) << "of a place and a size";
  EXPECT_EQ(bytes.input_gradients, 2 * 10) << "of an instance";
  EXPECT_EQ(bytes.total(), 472);
  const auto evaluation = build_schedule("1f1b", {2, 1, 4, 0, true});
  EXPECT_EQ(graph_bytes(plan_graphs(evaluation, 0, layers), layers, tensors).gradients, 0);
}

// The published mixture of experts: attention, router and preprocess are captured. One store per layer and live pass,
// of the published sizes; ours has two tensors of the input's size and integers instead of Megatron's dense maps.
TEST(GraphNumbers, StoresOfLayersWithExpertsAreThoseOfThePublishedTable) {
  using enum config::CudaGraphModule;
  constexpr int64_t kMiB = 1 << 20;
  const config::CudaGraphModules modules{attn, moe_router, moe_preprocess};
  const CapturedLayer layer{.tokens = 4096, .hidden_size = 2048, .num_experts = 128, .topk = 8, .ep = 8};
  EXPECT_EQ(megatron_store_bytes(layer, GraphExit::preprocess), 2 * 16 * kMiB + 4096 * 128 * (4 + 1));
  const auto tensors = captured_tensors(layer, modules);
  ASSERT_TRUE(tensors.has_value());
  const auto numbers = [&](int stages, int chunks, int microbatches, int rank) {
    const auto table = build_schedule("auto", {stages, chunks, microbatches});
    const GraphLayers layers = alike_layers(std::vector<int>(static_cast<size_t>(chunks), 8 / chunks));
    return draw::graph_numbers(plan_graphs(table, rank, layers), table, rank, layers, {{0, *tensors}},
                               {{0, megatron_store_bytes(layer, GraphExit::preprocess)}});
  };
  for (const int microbatches : {4, 8, 64}) {
    const draw::GraphNumbers first = numbers(4, 1, microbatches, 0), last = numbers(4, 1, microbatches, 3);
    EXPECT_EQ(first.graphs, 2 * 8 * 4);
    EXPECT_EQ(first.megatron_graphs, 2 * 8 * microbatches);
    EXPECT_EQ(first.megatron_stores, 4 * 8 * megatron_store_bytes(layer, GraphExit::preprocess));
    EXPECT_EQ(last.megatron_stores * 4, first.megatron_stores);
    EXPECT_EQ(first.bytes.inputs, 4 * 8 * 16 * kMiB);
    // About 1 GB, the lower end of the published range for pp x layers.
    EXPECT_GT(first.megatron_stores, 1024 * kMiB);
    EXPECT_GT(first.bytes.results, 1024 * kMiB);
    EXPECT_LT(first.bytes.results, first.megatron_stores);
  }
  // Without a pipeline one set, for any number of microbatches.
  EXPECT_EQ(numbers(1, 1, 8, 0).graphs, 2 * 8);
  EXPECT_EQ(numbers(1, 1, 8, 0).megatron_stores, 8 * megatron_store_bytes(layer, GraphExit::preprocess));
  // Virtual stages share instances; each chunk has its own graphs in them.
  EXPECT_EQ(numbers(4, 2, 8, 0).instances, 11);
  EXPECT_EQ(numbers(4, 2, 8, 0).bytes.inputs, 11 * 4 * 16 * kMiB);
  EXPECT_EQ(numbers(4, 2, 8, 0).megatron_stores, 11 * 4 * megatron_store_bytes(layer, GraphExit::preprocess));
}

TEST(GraphExits, CapturedPartsEndWhereTheirModulesDo) {
  using enum config::CudaGraphModule;
  using enum GraphExit;
  const auto exit = [](const config::CudaGraphModules& modules, bool experts) {
    return graph_exit(modules, experts);
  };
  EXPECT_EQ(exit({}, true), layer_end);
  EXPECT_EQ(exit({attn, moe_router}, true), route);
  EXPECT_EQ(exit({attn, moe_router}, false), layer_end);
  EXPECT_EQ(exit({moe_router, moe_preprocess}, true), preprocess);
  EXPECT_EQ(exit({moe_router, moe_preprocess}, false), std::nullopt);
  EXPECT_EQ(exit({attn, moe}, true), layer_end);
  EXPECT_EQ(exit({mlp}, true), std::nullopt);
  EXPECT_EQ(exit({mlp}, false), layer_end);
  const CapturedLayer layer{
      .tokens = 10, .hidden_size = 3, .num_experts = 4, .topk = 2, .etp = 2, .ep = 2, .slots = 2};
  const GraphTensors routed = *captured_tensors(layer, {attn, moe_router}),
                     planned = *captured_tensors(layer, {attn, moe_router, moe_preprocess});
  EXPECT_EQ(routed.results, (std::vector<int64_t>{60, 60, 80}));
  EXPECT_EQ(routed.integers, (std::vector<int64_t>{160}));
  EXPECT_EQ(planned.results, routed.results);
  EXPECT_EQ(planned.integers, (std::vector<int64_t>{320, 320, 48, 192, 8}));
  EXPECT_TRUE(routed.from_start && !routed.to_end);
  // The graph returns the result of a shared expert inside it; for an overlapped one it returns the product of fc1
  // and the gate's score.
  CapturedLayer shared = layer;
  shared.shared_width = 5;
  EXPECT_EQ(captured_tensors(shared, {attn, moe_router})->results, (std::vector<int64_t>{60, 60, 80, 60}));
  shared.shared_overlaps = shared.shared_gate = true;
  shared.shared_tokens = 20;
  EXPECT_EQ(captured_tensors(shared, {attn, moe_router})->results, (std::vector<int64_t>{60, 60, 80, 200, 40}));
  EXPECT_EQ(captured_tensors(shared, {attn})->results, (std::vector<int64_t>{60}));
}

// For layers that are captured whole the second one reads the output buffer of the first.
TEST(GraphNumbers, LayersThatMeetShareATensor) {
  const auto table = build_schedule("1f1b", {2, 1, 4});
  const GraphLayers layers = alike_layers({3});
  const GraphTensors whole = *captured_tensors({.tokens = 4, .hidden_size = 8}, {});
  EXPECT_EQ(graph_bytes(plan_graphs(table, 0, layers), layers, {{0, whole}}).inputs, 2 * 64);
  const GraphTensors half = *captured_tensors({.tokens = 4, .hidden_size = 8}, {config::CudaGraphModule::attn});
  EXPECT_EQ(graph_bytes(plan_graphs(table, 0, layers), layers, {{0, half}}).inputs, 2 * 3 * 64);
}

TEST(GraphPicture, IsTheGoldenOne) {
  const std::vector<std::pair<const char*, ScheduleRequest>> pictures = {
      {"1f1b_graphs.txt", {4, 1, 8}}, {"interleaved_graphs.txt", {4, 2, 8, 0, false, true}}};
  for (const auto& [name, request] : pictures) {
    const auto table = build_schedule("auto", request);
    const GraphLayers layers = alike_layers(std::vector<int>(static_cast<size_t>(request.num_chunks), 4));
    std::vector<GraphPlan> plans;
    std::vector<draw::GraphNumbers> numbers;
    for (int rank = 0; rank < table.num_stages; ++rank) {
      plans.push_back(plan_graphs(table, rank, layers));
      numbers.push_back(draw::graph_numbers(plans.back(), table, rank, layers, 1 << 24));
    }
    const std::string picture =
        draw::draw_graphs(table, replay::replay(table, {.forward = 1, .backward = 2}), plans, numbers, {});
    const std::string path = std::string(METROPLEX_SOURCE_DIR) + "/tests/golden/plan/" + name;
    if (std::getenv("METROPLEX_UPDATE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << picture;
    std::ostringstream golden;
    golden << std::ifstream(path, std::ios::binary).rdbuf();
    EXPECT_EQ(picture, golden.str()) << name;
  }
}

}  // namespace
}  // namespace metroplex::plan::graph_plan_test

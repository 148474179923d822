// Every schedule gives the formula's values, with eager and with rendezvous sends, with equal and with varying
// shapes.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "pipeline/toy.h"
#include "plan/table_writer.h"
#include "support/run_ranks.h"
#include "support/split_backward.h"

namespace metroplex::test::executor_ranks_test {
namespace {

constexpr ScheduleCase kCases[] = {
    {"none", 1, 1, 3},
    {"none", 1, 4, 2},
    {"gpipe", 2, 1, 5},
    {"gpipe", 4, 1, 4},
    {"1f1b", 2, 1, 1},
    {"1f1b", 4, 1, 2},
    {"1f1b", 4, 1, 7},
    {"1f1b", 8, 1, 9},
    {"interleaved", 2, 2, 4},
    {"interleaved", 2, 4, 6},
    {"interleaved", 4, 2, 8},
    {"interleaved", 2, 2, 8, 4},
    {"interleaved", 2, 2, 6, 3},
    {"interleaved", 4, 2, 8, 8},
    {"interleaved", 2, 2, 4, 0, true},
    {"interleaved", 4, 2, 8, 4, true},
};

std::string to_string(const ScheduleCase& test_case) {
  return base::concat(test_case.schedule, " pp ", test_case.pp, " chunks ", test_case.chunks, " microbatches ",
                      test_case.microbatches, " group ", test_case.group, test_case.overlap ? " overlapped" : "");
}

struct Mode {
  bool forward_only = false, variable = false, rendezvous = false;
};

void run_all(const Mode& mode) {
  for (const ScheduleCase& test_case : kCases) {
    SCOPED_TRACE(to_string(test_case));
    const plan::PipelineTable table = build_table(test_case, mode.forward_only);
    const auto batches = toy_batches(test_case.microbatches, mode.variable);
    const ToyResult expected = toy_by_formula(batches);
    RunOptions options;
    options.rendezvous = mode.rendezvous;
    options.timeout = std::chrono::seconds(20);
    run_ranks(
        test_case.pp, {.pp = test_case.pp},
        [&](const comm::World& world) {
          expect_same(run_toy(world.groups().pp, table, batches, mode.variable), expected, !mode.forward_only);
        },
        options);
  }
}

TEST(Executor, EveryScheduleGivesWhatTheFormulaGives) { run_all({}); }
TEST(Executor, ForwardOnlyGivesTheLossesAndNoGradient) { run_all({.forward_only = true}); }
TEST(Executor, MicrobatchesMayDifferInLengthAndSamples) { run_all({.variable = true}); }
TEST(Executor, ForwardOnlyTakesDifferentLengthsToo) { run_all({.forward_only = true, .variable = true}); }
TEST(Executor, RendezvousSendsDoNotDeadlock) { run_all({.rendezvous = true}); }
TEST(Executor, RendezvousSendsOfDifferentLengthDoNotDeadlock) { run_all({.variable = true, .rendezvous = true}); }

// All forwards, then all backwards, of stages that turn at the last rank, or at both ends.
plan::PipelineTable turning_table(int pp, int chunks, int microbatches) {
  plan::PipelineTable table;
  table.num_stages = pp;
  table.num_chunks = chunks;
  table.v_shaped = true;
  table.num_microbatches = microbatches;
  table.ranks.resize(static_cast<size_t>(pp));
  for (int rank = 0; rank < pp; ++rank) {
    plan::TableWriter writer(table, rank);
    for (int m = 0; m < microbatches; ++m) {
      for (int c = 0; c < chunks; ++c) {
        writer.recv_forward({m, c});
        writer.close_batch();
        writer.forward({m, c});
        writer.send_forward({m, c});
        writer.close_batch();
      }
    }
    for (int m = 0; m < microbatches; ++m) {
      for (int c = chunks; c-- > 0;) {
        writer.recv_backward({m, c});
        writer.close_batch();
        writer.backward({m, c});
        writer.send_backward({m, c});
        writer.close_batch();
      }
    }
  }
  plan::verify(table);
  return table;
}

TEST(Executor, StagesMayLieInAVAtTheEndsOfThePipeline) {
  const auto batches = toy_batches(3);
  const ToyResult expected = toy_by_formula(batches);
  for (const auto& [pp, chunks] : {std::pair(2, 2), {4, 2}, {2, 4}, {2, 3}}) {
    SCOPED_TRACE(base::concat("pp ", pp, " chunks ", chunks));
    const plan::PipelineTable table = turning_table(pp, chunks, 3);
    int sent = 0;
    for (const auto& actions : table.ranks)
      sent += static_cast<int>(std::count_if(actions.begin(), actions.end(), [](const plan::Action& action) {
        return action.kind == plan::ActionKind::send_forward;
      }));
    EXPECT_EQ(sent, 3 * (pp - 1) * chunks) << "where stages turn nothing is sent";
    run_ranks(pp, {.pp = pp},
              [&](const comm::World& world) { expect_same(run_toy(world.groups().pp, table, batches), expected); });
  }
}

TEST(Executor, WeightGradientsMayBeActionsOfTheirOwn) {
  for (const ScheduleCase& test_case : {kCases[1], kCases[2], kCases[6], kCases[8]}) {
    const auto batches = toy_batches(test_case.microbatches);
    const ToyResult expected = toy_by_formula(batches);
    for (const bool at_the_end : {false, true}) {
      SCOPED_TRACE(to_string(test_case) + (at_the_end ? " at the end" : ""));
      const plan::PipelineTable table = split_backward(build_table(test_case, false), at_the_end);
      run_ranks(test_case.pp, {.pp = test_case.pp},
                [&](const comm::World& world) { expect_same(run_toy(world.groups().pp, table, batches), expected); });
    }
  }
}

TEST(Executor, TheSameExecutorRunsStepAfterStep) {
  const plan::PipelineTable train = build_table({"1f1b", 2, 1, 4}, false),
                            evaluate = build_table({"1f1b", 2, 1, 3}, true);
  const auto four = toy_batches(4), three = toy_batches(3);
  const ToyResult expected = toy_by_formula(four);
  run_ranks(2, {.pp = 2}, [&](const comm::World& world) {
    const comm::Group& pp = world.groups().pp;
    const ToyStages toy(2, 1, pp.index());
    pipeline::Executor executor(toy.pointers(), pp);
    for (int step = 0; step < 3; ++step) {
      executor.run({train, four, toy_factors(4), toy_border(four, false)});
      executor.run({evaluate, three, {}, toy_border(three, false)});
    }
    for (size_t i = 0; i < toy.params.size(); ++i) {
      EXPECT_TRUE(at::allclose(toy.params[i]->main_grad, 3.0 * expected.gradients[toy.layers[i]], 1e-13, 0.0));
    }
  });
}

// The second stage computes slowly, so the first one waits in exchanges of two transfers.
TEST(Executor, SecondsOfActionsAddUpToAtMostTheStep) {
  const plan::PipelineTable table = build_table({"1f1b", 2, 1, 4}, false);
  const auto batches = toy_batches(4);
  run_ranks(2, {.pp = 2}, [&](const comm::World& world) {
    const comm::Group& pp = world.groups().pp;
    const ToyStages toy(2, 1, pp.index(), [&](const nn::Microbatch&) {
      if (pp.index() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    });
    pipeline::Executor executor(toy.pointers(), pp);
    double sum = 0;
    int transfers = 0;
    executor.observers().add("test", [&](const plan::Action& action, double seconds) {
      sum += seconds;
      transfers += plan::is_send(action.kind) ? 1 : 0;
    });
    const auto start = std::chrono::steady_clock::now();
    executor.run({table, batches, toy_factors(4), toy_border(batches, false)});
    const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(transfers, 4);
    EXPECT_LE(sum, whole.count());
  });
}

TEST(Executor, AFailingStageEndsAllTheOthersWithItsCause) {
  constexpr int kRanks = 4, kCulprit = 2;
  const plan::PipelineTable table = build_table({"1f1b", kRanks, 1, 6}, false);
  const auto batches = toy_batches(6);
  std::mutex lock;
  std::vector<std::string> causes(kRanks);
  std::string verdict;
  const auto start = std::chrono::steady_clock::now();
  try {
    comm::run_threads(kRanks, make_grid(kRanks, {.pp = kRanks}), {}, [&](const comm::World& world) {
      const auto fail = [&](const nn::Microbatch& batch) {
        MPX_CHECK(world.rank() != kCulprit || batch_index(batch) != 3, "test", "this stage has had enough");
      };
      const ToyStages toy(kRanks, 1, world.rank(), fail);
      pipeline::Executor executor(toy.pointers(), world.groups().pp);
      try {
        executor.run({table, batches, toy_factors(6), toy_border(batches, false)});
      } catch (...) {
        const std::lock_guard hold(lock);
        causes[static_cast<size_t>(world.rank())] = comm::failure_cause(std::current_exception());
        throw;
      }
    });
  } catch (const base::Error& error) { verdict = error.what(); }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_NE(verdict.find("rank 2"), std::string::npos) << verdict;
  for (const std::string& cause : causes)
    EXPECT_NE(cause.find("this stage has had enough"), std::string::npos) << cause;
}

TEST(Executor, ATableForOtherStagesIsRefused) {
  const plan::PipelineTable table = build_table({"none", 1, 2, 2}, false);
  const auto batches = toy_batches(2);
  const ToyStages toy(1, 1, 0);
  pipeline::Executor executor(toy.pointers(), comm::Group());
  EXPECT_THROW(executor.run({table, batches, toy_factors(2), toy_border(batches, false)}), std::logic_error);
}

}  // namespace
}  // namespace metroplex::test::executor_ranks_test

// train.trace_file: its form, its completeness, and that it changes no result.
#include "run/step_trace.h"

#include "comm/backends/counting.h"
#include "files/fault_file_system.h"
#include "run/clock_offset.h"
#include "run/small_experts.h"
#include "run/traced_runs.h"
#include "support/trace_check.h"

namespace metroplex::test::step_trace_ranks_test {
namespace {

struct Case {
  const char* name;
  TestLayout layout;
  int64_t ep = 1;
  bool graphs = false;
};
const Case kCases[] = {{"pp 2 tp 2", {.tp = 2, .pp = 2}},
                       {"pp 2 vpp 2", {.pp = 2, .vpp = 2}},
                       {"dp 2", {.dp = 2}},
                       {"ep 2", {.dp = 2}, 2},
                       {"dp 2 with graphs", {.dp = 2}, 1, true}};

TracedRun make_run(const Case& test_case, const Folder& folder, int64_t iterations, bool traced) {
  TracedRun run{test_case.ep > 1 ? small_experts() : small_gpt(), test_case.layout};
  use_small_corpus(run.config, folder);
  run.config.optim.lr_decay_iters = 10;
  run.config.parallel.expert_model_parallel_size = test_case.ep;
  run.config.train.train_iters = iterations;
  run.config.train.log_params_norm = true;
  run.config.train.metrics_file = folder.at(traced ? "traced.jsonl" : "plain.jsonl");
  if (test_case.graphs) {
    run.config.train.cuda_graph_impl = "full_iteration";
    run.config.train.cuda_graph_warmup_steps = 1;
  }
  if (traced) {
    run.config.train.trace_file = folder.at("trace.json");
    run.config.train.trace_step_start = 3;
    run.config.train.trace_step_end = 5;
  }
  return run;
}

bool has(const std::vector<CheckedSpan>& spans, const std::string& name) {
  return std::any_of(spans.begin(), spans.end(), [&](const CheckedSpan& span) { return span.name == name; });
}
int64_t count(const std::vector<CheckedSpan>& spans, const std::string& start) {
  return std::count_if(spans.begin(), spans.end(),
                       [&](const CheckedSpan& span) { return span.name.starts_with(start); });
}

TEST(StepTrace, NestsAndChangesNoResult) {
  for (const Case& test_case : kCases) {
    SCOPED_TRACE(test_case.name);
    const Folder folder;
    train(make_run(test_case, folder, 6, false));
    const KeptLog log = train(make_run(test_case, folder, 6, true));
    EXPECT_EQ(log.warnings, "");
    EXPECT_EQ(read_results(folder.at("plain.jsonl")), read_results(folder.at("traced.jsonl")));
    const CheckedTrace trace = check_trace(read_text(folder.at("trace.json")));
    EXPECT_EQ(trace.problems, std::vector<std::string>{});
    ASSERT_EQ(static_cast<int64_t>(trace.processes.size()), test_case.layout.ranks());
    for (int64_t rank = 0; rank < test_case.layout.ranks(); ++rank) {
      const std::vector<CheckedSpan> step = trace.row(rank, "step");
      for (const char* part : {"iteration 3", "iteration 4", "batch-generator", "forward-backward", "all-grads-sync",
                               "optimizer-inner-step", "params-all-gather", "read-outcome", "finish-step"})
        EXPECT_TRUE(has(step, part)) << part;
      EXPECT_FALSE(has(step, "iteration 2") || has(step, "iteration 5"));
      EXPECT_GT(trace.row(rank, "collectives").size(), 0u);
      if (test_case.graphs) continue;
      EXPECT_TRUE(has(step, "forward 0,0") && has(step, "backward 0,0"));
      EXPECT_GT(count(trace.row(rank, "segments"), "forward "), 0);
      EXPECT_GT(count(trace.row(rank, "segments"), "backward "), 0);
      EXPECT_TRUE(has(trace.row(rank, "operators"), "judge_step"));
      EXPECT_GT(count(trace.row(rank, "operators"), "aten::"), 0);
    }
  }
}

// The counting backend sees the calls of iterations 4 and 5 as the difference between runs of 6 and 4 iterations. The
// memory report makes iterations 2 and 3 differ. All-reduces over the world are left out: before the first iteration
// their number depends on the time of the dataset's index (run/long_work.h).
TEST(StepTrace, HasEveryCollective) {
  for (const Case& test_case : kCases) {
    SCOPED_TRACE(test_case.name);
    const Folder folder;
    std::map<std::string, int64_t> calls;
    for (const int64_t iterations : {4, 6}) {
      TracedRun run = make_run(test_case, folder, iterations, false);
      run.traffic = std::make_shared<comm::Traffic>();
      train(run);
      for (const auto& [key, counted] : run.traffic->counts()) {
        if (key.first + key.second != "worldall_reduce")
          calls[key.second] += iterations == 6 ? counted.calls : -counted.calls;
      }
    }
    TracedRun traced = make_run(test_case, folder, 6, true);
    traced.config.train.trace_step_start = 4;
    traced.config.train.trace_step_end = 6;
    train(traced);
    const CheckedTrace trace = check_trace(read_text(folder.at("trace.json")));
    int64_t sends = 0;
    std::map<std::string, int64_t> spans;
    for (int64_t rank = 0; rank < test_case.layout.ranks(); ++rank) {
      sends += count(trace.row(rank, "step"), "send");
      for (const CheckedSpan& span : trace.row(rank, "collectives")) {
        if (span.name != "all_reduce world") ++spans[span.name.substr(0, span.name.find(' '))];
        EXPECT_EQ(span.arguments.at("bytes") == "0", span.name.starts_with("barrier")) << span.name;
      }
    }
    for (const auto& [operation, number] : calls) {
      if (operation == "recv" || (operation == "send" && test_case.graphs)) continue;
      EXPECT_EQ(operation == "send" ? sends : spans[operation], number) << operation;
    }
  }
}

TEST(StepTrace, IsWrittenWhenTheRunEndsEarly) {
  const Folder folder;
  train(make_run({"", {.dp = 2}}, folder, 3, true));
  const CheckedTrace trace = check_trace(read_text(folder.at("trace.json")));
  EXPECT_EQ(trace.problems, std::vector<std::string>{});
  EXPECT_TRUE(has(trace.row(1, "step"), "iteration 3"));
  TracedRun later = make_run({"", {.dp = 2}}, folder, 2, true);
  later.config.train.trace_file = folder.at("none.json");
  EXPECT_NE(train(later).warnings.find("train.trace_step_start = 3"), std::string::npos);
}

TEST(StepTrace, IsReportedOnceOnAFullDisk) {
  const Folder folder;
  files::PosixFileSystem posix;
  TracedRun run = make_run({"", {.dp = 2}}, folder, 6, true);
  run.disk = std::make_shared<files::FaultFileSystem>(
      posix, files::Faults{.before = [](const std::string& what, const std::string& path) {
        if (what == "create" && path.ends_with("trace.json.part"))
          throw base::Error("files", path + ": No space left on device");
      }});
  const KeptLog log = train(run);
  EXPECT_NE(log.warnings.find("No space left"), std::string::npos) << log.warnings;
  EXPECT_EQ(log.warnings.find("No space left"), log.warnings.rfind("No space left"));
  EXPECT_EQ(read_results(folder.at("traced.jsonl")).size(), 6u) << "the run continues";
}

TEST(StepTrace, KeepsFilesOfOthers) {
  const Folder folder;
  std::ofstream(folder.at("trace.json")) << "model: {}\n";
  EXPECT_THROW(train(make_run({"", {.dp = 1}}, folder, 6, true)), base::Error);
  std::ofstream(folder.at("trace.json")) << base::TraceEvents().json();
  train(make_run({"", {.dp = 1}}, folder, 6, true));
  TracedRun elsewhere = make_run({"", {.dp = 1}}, folder, 6, true);
  elsewhere.config.train.trace_file = folder.at("missing/trace.json");
  EXPECT_THROW(train(elsewhere), base::Error);
  EXPECT_EQ(read_text(folder.at("trace.json.1")), base::TraceEvents().json());
}

TEST(RankSpans, PutOverlappingSpansOnSeparateThreads) {
  const auto at = [](int ms) { return run::TraceSpan::Time(std::chrono::milliseconds(ms)); };
  const std::vector<run::TraceSpan> spans{{"inner", at(2), at(3)},
                                          {"outer", at(0), at(10)},
                                          {"late", at(5), at(12)},
                                          {"after", at(10), at(11)},
                                          {"in late", at(11), at(12)}};
  EXPECT_EQ(run::assign_threads(spans), (std::vector<int>{0, 0, 1, 0, 0}));
}

// A second clock is 5 s ahead, and barriers take 10 us.
TEST(ClockOffset, IsBoundedByBarriers) {
  const int64_t ahead = 5'000'000'000;
  std::vector<run::BarrierTimes> first, mine;
  for (const int64_t start : {0, 1'000'000}) {
    first.push_back({start, start + 10'000});
    mine.push_back({start + ahead + 2'000, start + ahead + 11'000});
  }
  const run::ClockOffset offset = run::clock_offset(first, mine);
  EXPECT_LE(std::abs(offset.ns - ahead), offset.error_ns);
  EXPECT_LE(offset.error_ns, 10'000);
  EXPECT_EQ(run::clock_offset(first, first).ns, 0) << "ranks of one machine share a clock";
}

}  // namespace
}  // namespace metroplex::test::step_trace_ranks_test

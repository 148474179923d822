// train.trace_file of ranks that are processes: rank 0 writes the spans of both.
#include "run/step_trace.h"

#include "run/traced_runs.h"
#include "support/run_processes.h"
#include "support/trace_check.h"

namespace metroplex::test::step_trace_procs_test {
namespace {

TEST(StepTraceProcesses, WriteOneFile) {
  run_processes_well(2, {.dp = 2}, [](const comm::World& world) {
    const Folder folder;
    TracedRun run{small_gpt(), {.dp = 2}};
    use_small_corpus(run.config, folder);
    run.config.train.train_iters = 3;
    run.config.train.log_interval = 3;
    run.config.train.log_slowest_rank = true;
    run.config.train.trace_file = folder.at("trace.json");
    run.config.train.trace_step_start = 2;
    run.config.train.trace_step_end = 4;
    KeptLog log;
    train_rank(run, cut(run.config, run.layout), world, log);
    if (world.rank() != 0) return;
    EXPECT_NE(log.lines.find(" slowest rank "), std::string::npos) << log.lines;
    const CheckedTrace trace = check_trace(read_text(folder.at("trace.json")));
    EXPECT_EQ(trace.problems, std::vector<std::string>{});
    ASSERT_EQ(trace.processes.size(), 2u);
    // Aligned clocks: each all-reduce of losses overlaps with that of the other rank.
    const auto reduces = [&](int64_t rank) {
      std::vector<CheckedSpan> spans = trace.row(rank, "collectives");
      std::erase_if(spans, [](const CheckedSpan& span) { return span.name != "all_reduce world"; });
      return spans;
    };
    const std::vector<CheckedSpan> first = reduces(0), second = reduces(1);
    ASSERT_GT(first.size(), 0u);
    ASSERT_EQ(first.size(), second.size());
    for (size_t i = 0; i < first.size(); ++i)
      EXPECT_TRUE(first[i].start < second[i].end && second[i].start < first[i].end) << i;
  });
}

}  // namespace
}  // namespace metroplex::test::step_trace_procs_test

// train.log_slowest_rank names the delayed rank and the cause of its delay.
#include "run/slowest_rank.h"

#include <thread>

#include "run/traced_runs.h"
#include "support/run_ranks.h"

namespace metroplex::test::slowest_rank_ranks_test {
namespace {

using run::RankTimes;

void sleep_ms(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Three ranks take 2 s for 2 steps; ranks 0 and 2 wait for rank 1, which has 0.6 s more of its own.
std::vector<RankTimes> waiting_ranks(RankTimes slow) {
  return {{2, 1, 0.1, 0.05, 1e6}, slow, {2, 1, 0.1, 0.05, 1e6}};
}

TEST(SlowestRank, NamesTheCause) {
  struct Case {
    const char* why;
    double seconds;
    std::vector<RankTimes> ranks;
  };
  const Case cases[] = {{"own work", 0.3, waiting_ranks({2, 0.4, 0.1, 0.05, 1e6})},
                        {"own work", 0.3, waiting_ranks({2, 0.4, 0.35, 0.3, 1e6})},
                        {"loader", 0.3, waiting_ranks({2, 0.4, 0.45, 0.05, 1e6})},
                        {"host", 0.3, waiting_ranks({2, 0.4, 0.1, 0.4, 1e6})},
                        {"link", 0.725, {{2, 1.5, 0, 0, 1e9}, {2, 1.45, 0, 0, 1e9}, {2, 1.5, 0, 0, 1e9}}},
                        {"balanced", 0.02, {{2, 0.5, 0, 0, 1e6}, {2, 0.46, 0, 0, 1e6}, {2, 0.5, 0, 0, 1e6}}}};
  for (const Case& test_case : cases) {
    const run::SlowestRank slowest = run::find_slowest(test_case.ranks, 2);
    EXPECT_EQ(slowest.rank, 1);
    EXPECT_EQ(slowest.why, test_case.why) << slowest.text;
    EXPECT_NEAR(slowest.seconds, test_case.seconds, 1e-9) << slowest.text;
  }
}

// Rank 1 sleeps in its own work, in its loader, or nowhere; the barrier is communication.
TEST(SlowestRank, MeasuresALoaderApartFromWork) {
  for (const std::string part : {"loader", "own work"}) {
    run_ranks(3, {.dp = 3}, [&](const comm::World& plain) {
      run::RankRecorder recorder;
      const comm::World world = plain.with_recorded_groups(recorder);
      run::RankTimer timer(recorder);
      const bool slow = world.rank() == 1;
      for (int step = 0; step < 3; ++step) {
        timer.begin_step();
        timer.begin_loading();
        if (slow && part == "loader") sleep_ms(60);
        comm::barrier(world.groups().dp);  // part of the loader, but not its own time
        timer.end_loading();
        if (slow && part == "own work") sleep_ms(60);
        comm::barrier(world.groups().dp);
        timer.end_step();
      }
      const auto slowest = timer.report(world, 7);
      ASSERT_EQ(slowest.has_value(), world.rank() == 0);
      if (!slowest) return;
      EXPECT_EQ(slowest->rank, 1);
      EXPECT_EQ(slowest->why, part) << slowest->text;
      EXPECT_GT(slowest->seconds, 0.030) << slowest->text;
      EXPECT_EQ(slowest->from, 5);
      EXPECT_EQ(slowest->to, 7);
    });
  }
}

TracedRun make_run(const Folder& folder, int64_t ranks) {
  TracedRun run{small_gpt(), {.dp = ranks}};
  use_small_corpus(run.config, folder);
  run.config.train.train_iters = 4;
  run.config.train.log_interval = 2;
  run.config.train.log_slowest_rank = true;
  run.config.train.metrics_file = folder.at("metrics.jsonl");
  return run;
}

std::vector<nlohmann::json> slowest_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json values = nlohmann::json::parse(line);
    if (values.contains("slowest")) lines.push_back(values.at("slowest"));
  }
  return lines;
}

TEST(SlowestRank, IsReportedByTheTrainer) {
  const Folder folder;
  TracedRun run = make_run(folder, 2);
  run.in_step = [](int rank) {
    if (rank == 1) sleep_ms(100);
  };
  const KeptLog log = train(run);
  EXPECT_NE(log.lines.find(" slowest rank 1, own work: "), std::string::npos) << log.lines;
  EXPECT_EQ(log.lines.find("loader 0.00 ms"), std::string::npos) << "the trainer measures its loader";
  const std::vector<nlohmann::json> lines = slowest_lines(folder.at("metrics.jsonl"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1].at("from"), 3);
  EXPECT_EQ(lines[1].at("to"), 4);
  EXPECT_EQ(lines[1].at("rank"), 1);
  EXPECT_EQ(lines[1].at("why"), "own work");
  EXPECT_GT(lines[1].at("seconds").get<double>(), 0.040) << "half of the delay, above the median of two ranks";
}

TEST(SlowestRank, ChangesNoResult) {
  const Folder folder, other;
  train(make_run(folder, 2));
  TracedRun plain = make_run(other, 2);
  plain.config.train.log_slowest_rank = false;
  EXPECT_EQ(train(plain).lines.find("slowest"), std::string::npos);
  EXPECT_EQ(read_results(folder.at("metrics.jsonl")), read_results(other.at("metrics.jsonl")));
}

TEST(SlowestRank, NeedsTwoRanks) {
  const Folder folder;
  EXPECT_EQ(train(make_run(folder, 1)).lines.find("slowest"), std::string::npos);
  EXPECT_TRUE(slowest_lines(folder.at("metrics.jsonl")).empty());
}

}  // namespace
}  // namespace metroplex::test::slowest_rank_ranks_test

// Reading of metrics files that a run may still write.
#include "page/run_file.h"

#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "files/memory_file_system.h"
#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::page::run_file_test {
namespace {

std::string step(int64_t iteration, const std::string& loss, const std::string& more = "") {
  return "{\"iteration\": " + std::to_string(iteration) + ", \"lm loss\": " + loss + more + "}\n";
}

struct Disk : files::MemoryFileSystem {
  void add(const std::string& path, const std::string& text) { append(path)->write(text); }
};

RunData read(const std::string& text) {
  Disk disk;
  disk.add("m.jsonl", text);
  return RunReader(disk, "m.jsonl").run();
}

TEST(RunFile, LeavesCutLineForNextRead) {
  Disk disk;
  disk.add("m.jsonl", step(1, "5") + "{\"iteration\": 2, \"lm lo");
  RunReader reader(disk, "m.jsonl");
  EXPECT_EQ(reader.run().find("lm loss")->iterations, std::vector<int64_t>{1});
  EXPECT_FALSE(reader.read_more());
  disk.add("m.jsonl", "ss\": 4}\n");
  EXPECT_TRUE(reader.read_more());
  EXPECT_EQ(reader.run().find("lm loss")->values, (std::vector<double>{5, 4}));
  EXPECT_EQ(reader.run().unreadable_lines, 0);
}

TEST(RunFile, CountsUnreadableLines) {
  const RunData run = read(step(1, "5") + "garbage\n" + step(2, "NaN") + step(3, "1e999") + step(4, "-inf") +
                           "[1]\n" + "\n" + step(5, "3"));
  EXPECT_EQ(run.unreadable_lines, 5);
  EXPECT_EQ(run.find("lm loss")->iterations, (std::vector<int64_t>{1, 5}));
}

TEST(RunFile, IgnoresUnknownKeysAndLines) {
  const RunData run =
      read(step(1, "5", ", \"new\": {\"deep\": [1, {}]}, \"note\": \"\\u00e9\"") +
           "{\"run\": 7}\n{\"later\": {\"iteration\": 9}}\n" + "{\"memory\": {\"rank\": \"x\", \"measured\": 3}}\n");
  EXPECT_EQ(run.unreadable_lines, 0);
  EXPECT_EQ(run.find("lm loss")->values, std::vector<double>{5});
  EXPECT_EQ(run.find("new"), nullptr);
}

TEST(RunFile, ReadsNullAsNaN) {
  const RunData run = read(step(1, "null") + step(2, "1.7e308") + step(3, "-4.9e-324"));
  const std::vector<double>& values = run.find("lm loss")->values;
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_EQ(values[1], 1.7e308);
  EXPECT_EQ(values[2], -4.9e-324);
}

// A nested key selects the JSON tree instead of the scanner.
TEST(RunFile, ScannerAndTreeAgree) {
  const std::string text = " { \"iteration\" :3 ,\"lm loss\": -1.25e-3, \"grad-norm\": null, \"skipped\": true }";
  RunLine flat, tree;
  ASSERT_TRUE(flat.parse(text));
  ASSERT_TRUE(tree.parse(text.substr(0, text.size() - 1) + ", \"nested\": []}"));
  EXPECT_TRUE(flat.json.is_null());
  EXPECT_FALSE(tree.json.is_null());
  ASSERT_EQ(flat.count, tree.count);
  EXPECT_EQ(flat.numbers[0], tree.numbers[0]);
  EXPECT_TRUE(std::isnan(flat.numbers[1].second) && std::isnan(tree.numbers[1].second));
  EXPECT_EQ(flat.iteration, tree.iteration);
  EXPECT_TRUE(flat.skipped && tree.skipped);
}

TEST(RunFile, ResumedStepsReplaceEarlierOnes) {
  const RunData run =
      read(step(1, "9") + step(2, "8") + step(3, "7") + step(4, "6", ", \"skipped\": true") + step(3, "2"));
  EXPECT_EQ(run.find("lm loss")->iterations, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(run.find("lm loss")->values, (std::vector<double>{9, 8, 2}));
  EXPECT_EQ(run.restarts, std::vector<int64_t>{3});
  EXPECT_TRUE(run.skipped.empty());
}

TEST(RunFile, StartLineMarksRestart) {
  const std::string start = "{\"run\": {\"iteration\": 2, \"config\": {\"optim\": {\"lr\": 0.1}}}}\n";
  const RunData run = read("{\"run\": {\"iteration\": 0}}\n" + step(1, "9") + step(2, "8") + step(3, "7") + start);
  EXPECT_EQ(run.find("lm loss")->iterations, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(run.restarts, std::vector<int64_t>{3});
  EXPECT_EQ(run.start["config"]["optim"]["lr"], 0.1);
}

TEST(RunFile, SeparatesEvaluations) {
  const std::string evaluation = "{\"iteration\": 2, \"split\": \"validation\", \"lm loss\": 4}\n";
  const RunData run = read(step(1, "9") + step(2, "8") + evaluation + step(3, "7"));
  EXPECT_EQ(run.find("lm loss")->values, (std::vector<double>{9, 8, 7}));
  EXPECT_EQ(run.find("validation loss")->values, std::vector<double>{4});
  EXPECT_TRUE(run.restarts.empty());
}

TEST(RunFile, ReadsMemoryTimeAndSlowestRank) {
  const RunData run = read(
      step(1, "9", ", \"experts\": [{\"layer\": 3, \"experts max over mean of a step\": 1.5}]") +
      "{\"memory\": {\"iteration\": 2, \"rank\": 1, \"predicted\": {\"peak\": 3}, \"measured\": {\"peak\": 4}}}\n"
      "{\"time\": {\"iteration\": 10, \"measured\": {\"step\": 0.5}, \"error\": 0.05}}\n"
      "{\"slowest\": {\"from\": 1, \"to\": 10, \"rank\": 5, \"why\": \"link\", \"seconds\": 0.25, \"text\": "
      "\"t\"}}\n");
  EXPECT_EQ(run.expert_imbalance.at(3).values, std::vector<double>{1.5});
  EXPECT_EQ(run.memory.at(1).predicted, (Amounts{{"peak", 3}}));
  EXPECT_EQ(run.memory.at(1).measured, (Amounts{{"peak", 4}}));
  EXPECT_EQ(run.time->measured, (Amounts{{"step", 0.5}}));
  EXPECT_TRUE(run.time->predicted.empty());
  ASSERT_EQ(run.slowest.size(), 1);
  EXPECT_EQ(run.slowest[0].rank, 5);
  EXPECT_EQ(run.slowest[0].why, "link");
  EXPECT_EQ(run.slowest[0].seconds, 0.25);
}

TEST(RunFile, KeepsLastRounding) {
  const auto measured = [](int64_t iteration, const std::string& error) {
    return step(iteration, "1", ", \"rounding\": {\"a\": {\"input\": {\"error\": " + error + "}}}");
  };
  const std::string text = measured(1, "0.5") + measured(2, "0.25") + step(3, "1");
  EXPECT_EQ(read(text).rounding.iteration, 2);
  EXPECT_EQ(read(text).rounding.layers["a"]["input"]["error"], 0.25);
  EXPECT_TRUE(read(text + step(2, "1")).rounding.layers.is_null());  // a resumed run
}

TEST(RunFile, RereadsShorterFile) {
  Disk disk;
  disk.add("m.jsonl", step(1, "9") + step(2, "8"));
  RunReader reader(disk, "m.jsonl");
  disk.truncate("m.jsonl", 0);
  disk.add("m.jsonl", step(7, "1"));
  EXPECT_TRUE(reader.read_more());
  EXPECT_EQ(reader.run().find("lm loss")->iterations, std::vector<int64_t>{7});
  EXPECT_TRUE(reader.run().restarts.empty());
}

TEST(RunFile, RereadsReplacedFile) {
  const test::Folder folder;
  files::PosixFileSystem disk;
  const std::string path = folder.at("m.jsonl");
  const auto replace = [&](const std::string& text) {
    std::ofstream(path + ".new") << text;
    disk.rename(path + ".new", path);
  };
  replace(step(1, "9") + step(2, "8"));
  RunReader reader(disk, path);
  for (const std::string& more : {std::string(), step(9, "2")}) {  // a file of the same size, and a longer one
    replace(step(7, "4") + step(8, "3") + more);
    EXPECT_TRUE(reader.read_more());
    EXPECT_EQ(reader.run().find("lm loss")->iterations.front(), 7);
    EXPECT_FALSE(reader.read_more());
  }
  // Without an open map, the file system may give the inode of a removed file to the next one.
  disk.remove(path);
  std::ofstream(path) << step(5, "6") + step(6, "5") + step(7, "4") + step(8, "3");
  EXPECT_TRUE(reader.read_more());
  EXPECT_EQ(reader.run().find("lm loss")->iterations, (std::vector<int64_t>{5, 6, 7, 8}));
}

TEST(RunFile, KeepsStepsWhileFileIsAbsent) {
  Disk disk;
  disk.add("m.jsonl", step(1, "9"));
  RunReader reader(disk, "m.jsonl");
  disk.rename("m.jsonl", "m.jsonl.1");
  EXPECT_FALSE(reader.read_more());
  EXPECT_EQ(reader.run().find("lm loss")->values, std::vector<double>{9});
  disk.rename("m.jsonl.1", "m.jsonl");
  disk.add("m.jsonl", step(2, "8"));
  EXPECT_TRUE(reader.read_more());
  EXPECT_EQ(reader.run().find("lm loss")->values, (std::vector<double>{9, 8}));
}

TEST(RunFile, AcceptsFileWithoutSteps) {
  EXPECT_EQ(read("").find("lm loss"), nullptr);
  EXPECT_EQ(read("{\"run\": {\"iteration\": 0}}\n").find("lm loss"), nullptr);
}

TEST(RunFile, FindsMetricsInDirectory) {
  Disk disk;
  disk.make_directory("run");
  disk.add("run/experts.jsonl", "{\"expert_trace\": 1, \"layers\": [1]}\n");
  EXPECT_NE(test::catch_error([&] { find_metrics_file(disk, "run"); }).find("contains no metrics file"),
            std::string::npos);
  disk.add("run/b.jsonl", step(1, "9"));
  EXPECT_EQ(find_metrics_file(disk, "run"), "run/b.jsonl");
  disk.add("run/a.jsonl", "{\"run\": {}}\n");
  EXPECT_NE(test::catch_error([&] { find_metrics_file(disk, "run"); }).find("contains 2 metrics files"),
            std::string::npos);
}

TEST(RunFile, RejectsOtherFiles) {
  Disk disk;
  disk.add("other.jsonl", "{\"text\": \"a document\"}\n");
  EXPECT_NE(test::catch_error([&] { RunReader(disk, "other.jsonl"); }).find("is not a metrics file"),
            std::string::npos);
  EXPECT_NE(test::catch_error([&] { RunReader(disk, "missing"); }).find("is not a file"), std::string::npos);
}

TEST(RunFile, RejectsRepeatedRun) {
  Disk disk;
  disk.make_directory("a");
  disk.add("a/metrics.jsonl", step(1, "9"));
  EXPECT_NE(test::catch_error([&] {
              read_runs(disk, {"a", "a/metrics.jsonl"});
            }).find("pass each run once"),
            std::string::npos);
}

TEST(RunFile, EqualNamesBecomePaths) {
  Disk disk;
  for (const std::string folder : {"a", "b", "b/run", "a/run"}) disk.make_directory(folder);
  for (const std::string path : {"a/run/metrics.jsonl", "b/run/metrics.jsonl", "b/loss.jsonl"})
    disk.add(path, step(1, "9"));
  const std::vector<RunReader> runs = read_runs(disk, {"a/run", "b/run", "b/loss.jsonl"});
  EXPECT_EQ(runs[0].run().name, "a/run/metrics.jsonl");
  EXPECT_EQ(runs[1].run().name, "b/run/metrics.jsonl");
  EXPECT_EQ(runs[2].run().name, "loss");
}

}  // namespace
}  // namespace metroplex::page::run_file_test

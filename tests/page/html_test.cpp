// The page of metroplex report and its data.
#include "page/html.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "page/config_rows.h"
#include "page/page_data.h"
#include "page/pictures.h"

namespace metroplex::page::html_test {
namespace {

RunData run_with(const std::vector<double>& losses) {
  RunData run;
  run.path = run.name = "run";
  Series& series = run.metric("lm loss");
  for (const double loss : losses) series.append(static_cast<int64_t>(series.values.size()) + 1, loss);
  return run;
}

size_t count(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

// Returns the data of a page as the browser reads it.
Json read_data(const std::string& html) {
  const std::string begin = "id=\"data\">";
  const size_t from = html.find(begin) + begin.size();
  return Json::parse(html.substr(from, html.find("</script>", from) - from));
}

TEST(Page, EscapesNamesAndPaths) {
  RunData run = run_with({1, 2});
  const std::string before = make_page({&run}, {});
  run.name = run.path = "</script><img src=x onerror=\"alert('1')\">&";
  run.start = Json::parse(R"({"config": {"run": {"</script>": "<!-- </script>"}}})");
  const std::string html = make_page({&run}, {});
  EXPECT_EQ(count(html, "</script"), count(before, "</script"));
  EXPECT_EQ(count(html, "<img"), 0);
  EXPECT_EQ(count(html, "<!--"), 0);
  EXPECT_EQ(count(html, "&lt;/script&gt;&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt;&amp;"), 2);
  EXPECT_EQ(read_data(html)["runs"][0]["path"], run.path);
  EXPECT_EQ(read_data(html)["config"][0]["values"][0], "<!-- </script>");
}

TEST(Page, KeepsBracesOfValues) {
  RunData run = run_with({1, 2});
  run.name = "{{css}} {{data}}";
  EXPECT_EQ(count(make_page({&run}, {}), "<title>{{css}} {{data}}"), 1);
}

TEST(Page, ReplacesBytesThatAreNotUtf8) {
  RunData run = run_with({1, 2});
  run.path = "a\xFF";
  EXPECT_EQ(read_data(make_page({&run}, {}))["runs"][0]["path"], "a\uFFFD");
}

TEST(Page, NeedsNoOtherFile) {
  RunData run = run_with({1, 2});
  std::string html = make_page({&run}, {});
  for (const std::string name : {"http://www.w3.org/2000/svg"}) {
    for (size_t at; (at = html.find(name)) != std::string::npos;) html.erase(at, name.size());
  }
  for (const std::string word : {"http:", "https:", "src=", "@import", "url(h", "<link", "fetch(", "import("})
    EXPECT_EQ(count(html, word), 0) << word;
}

TEST(Page, ReloadsOnlyOnRequest) {
  const RunData run = run_with({1, 2});
  EXPECT_EQ(read_data(make_page({&run}, {}))["reload"], 0);
  EXPECT_EQ(read_data(make_page({&run}, {.reload_seconds = 5}))["reload"], 5);
}

TEST(Page, StaysSmallForMillionSteps) {
  RunData run = run_with(std::vector<double>(1'000'000, 0.123456789));
  for (size_t i = 0; i < run.metric("lm loss").values.size(); ++i)
    run.metric("lm loss").values[i] += 1e-6 * static_cast<double>(i * 7919 % 1000);
  for (const std::string name : {"learning-rate", "grad-norm", "batch-size", "loss-scale", "iteration-time",
                                 "throughput", "tokens-per-second", "params-norm"})
    run.metrics.emplace_back(name, *run.find("lm loss"));
  for (int64_t i = 1; i < 100'000; ++i) run.slowest.push_back({10 * i, 10 * i + 9, i % 8, 0.1, "own work", "text"});
  EXPECT_LT(make_page({&run}, {}).size(), 3e6);
}

TEST(PageData, DrawsFewPointsPerCurve) {
  const RunData run = run_with(std::vector<double>(100'000, 2));
  const Json curve = page_data({&run})["metrics"]["lm loss"][0];
  EXPECT_LE(curve["x"].size(), 4000);
  EXPECT_EQ(curve["x"].size(), curve["y"].size());
  EXPECT_EQ(curve["of"], 100'000);
  EXPECT_EQ(curve["window"], 1000);
  EXPECT_EQ(points_of_curve(4), 1000);
}

TEST(PageData, HoldsEmptyShortAndHugeRuns) {
  const RunData empty;
  EXPECT_TRUE(page_data({&empty})["runs"][0]["iteration"].is_null());
  EXPECT_TRUE(page_data({&empty})["metrics"].empty());
  const RunData one = run_with({3});
  EXPECT_EQ(page_data({&one})["metrics"]["lm loss"][0]["y"], Json({3}));
  const RunData huge = run_with({1.5e308, -1.5e308, std::nan("")});
  const Json data = page_data({&huge});
  EXPECT_EQ(data["metrics"]["lm loss"][0]["y"], Json({1.5e308, -1.5e308, nullptr}));
  EXPECT_EQ(data["runs"][0]["loss"], -1.5e308);
  EXPECT_EQ(data["runs"][0]["not_finite"], 1);
}

TEST(PageData, OverlaysRunsWithDifferentMetrics) {
  RunData first = run_with({1, 2}), second = run_with({3, 4});
  second.metric("validation loss").append(2, 5);
  const Json metrics = page_data({&first, &second})["metrics"];
  EXPECT_EQ(metrics["lm loss"].size(), 2);
  EXPECT_TRUE(metrics["validation loss"][0].is_null());
  EXPECT_EQ(metrics["validation loss"][1]["y"], Json({5}));
}

TEST(PageData, ShowsRankWithLargestPeak) {
  RunData run = run_with({1});
  run.memory[0] = {2, {{"moments", 10}, {"peak", 11}}, {{"moments", 10}, {"peak", 12}}};
  run.memory[7] = {2, {{"moments", 10}, {"peak", 11}}, {{"moments", 12}, {"peak", 13}, {"other", 1}}};
  const Json memory = page_data({&run})["memory"][0];
  EXPECT_EQ(memory["rank"], 7);
  EXPECT_EQ(memory["bars"][0], Json::parse(R"({"name": "moments", "predicted": 10, "measured": 12})"));
  EXPECT_EQ(memory["bars"][2], Json::parse(R"({"name": "other", "predicted": null, "measured": 1})"));
}

TEST(PageData, ShowsPredictionsOfStartLine) {
  RunData run = run_with({1});
  run.start = Json::parse(R"({"memory": {"bytes": {"moments": 5}, "peak": 6}, "time": {"seconds": {"step": 0.5}}})");
  const Json data = page_data({&run});
  EXPECT_EQ(data["memory"][0]["bars"][1]["predicted"], 6);
  EXPECT_EQ(data["time"][0]["bars"][0]["predicted"], 0.5);
  run.start = nullptr;
  EXPECT_TRUE(page_data({&run})["memory"][0].is_null());
}

TEST(PageData, StripKeepsLargestLoss) {
  RunData run = run_with({1});
  for (int64_t i = 0; i < 10'000; ++i) run.slowest.push_back({i, i, 1, i == 4321 ? 9.0 : 0.5, "link", "t"});
  const Json slowest = page_data({&run})["slowest"][0];
  EXPECT_LE(slowest["strip"].size(), 500);
  EXPECT_EQ(std::count_if(slowest["strip"].begin(), slowest["strip"].end(),
                          [](auto& part) { return part["seconds"] == 9; }),
            1);
  EXPECT_EQ(slowest["rows"].size(), 100);
  EXPECT_EQ(slowest["rows"][0]["to"], 9'999);
}

TEST(PageData, HeatKeepsLargestImbalance) {
  RunData run = run_with({1});
  for (int64_t i = 1; i <= 1600; ++i) run.expert_imbalance[2].append(i, i == 815 ? 7.5 : 1.25);
  const Json experts = page_data({&run})["experts"][0];
  ASSERT_EQ(experts["from"].size(), 160);
  EXPECT_EQ(experts["from"][81], 811);
  EXPECT_EQ(experts["rows"][0][81], 7.5);
  EXPECT_EQ(experts["rows"][0][82], 1.25);
}

// An error of null is of values that are not finite.
TEST(PageData, SortsRoundingByError) {
  RunData run = run_with({1});
  EXPECT_TRUE(page_data({&run})["rounding"][0].is_null());
  run.rounding = {7, Json::parse(R"({"a": {"input": {"error": 0.01, "amax": 3}, "weight": {"error": null}},
                                     "b": {"input": {"error": 0.02, "scale": 448}}, "c": 5})")};
  const Json rounding = page_data({&run})["rounding"][0];
  EXPECT_EQ(rounding["iteration"], 7);
  EXPECT_EQ(rounding["count"], 3);
  std::vector<std::string> order;
  for (const Json& row : rounding["rows"])
    order.push_back(row["layer"].get<std::string>() + " " + row["operand"].get<std::string>());
  EXPECT_EQ(order, (std::vector<std::string>{"a weight", "b input", "a input"}));
  EXPECT_TRUE(rounding["rows"][0]["error"].is_null());
  EXPECT_EQ(rounding["rows"][1]["scale"], 448);
  EXPECT_EQ(rounding["rows"][2]["amax"], 3);
}

TEST(ConfigRows, DifferingKeysComeFirst) {
  RunData first, second;
  first.start =
      Json::parse(R"({"config": {"run": {"name": "a"}, "optim": {"lr": 0.1, "old": 1, "list": [1, "x"]}}})");
  second.start = Json::parse(R"({"config": {"run": {"name": "a"}, "optim": {"lr": 0.2, "list": [1, "x"]}}})");
  const std::vector<ConfigRow> rows = config_rows({&first, &second});
  ASSERT_EQ(rows.size(), 4);
  EXPECT_EQ(rows[0].key, "optim.lr");
  EXPECT_EQ(rows[0].values, (std::vector<std::string>{"0.1", "0.2"}));
  EXPECT_EQ(rows[1].key, "optim.old");
  EXPECT_EQ(rows[1].values, (std::vector<std::string>{"1", ""}));
  EXPECT_EQ(rows[2].key, "run.name");
  EXPECT_FALSE(rows[2].differs);
  EXPECT_EQ(rows[3].values[1], "[1,\"x\"]");
}

TEST(ConfigRows, ReadsConfigOfAnyVersion) {
  const config::Config config = read_config(Json::parse(
      R"({"config": {"parallel": {"tensor_model_parallel_size": 2, "unknown": 1, "sequence_parallel": true},
                     "train": {"global_batch_size": "many"}, "new": {"key": 1}, "flat": 3}})"));
  EXPECT_EQ(config.parallel.tensor_model_parallel_size, 2);
  EXPECT_TRUE(config.parallel.sequence_parallel);
  EXPECT_EQ(config.train.global_batch_size, config::Config().train.global_batch_size);
}

TEST(Pictures, DrawLayoutOfConfig) {
  RunData run = run_with({1});
  run.start = Json::parse(R"({"world_size": 8, "config": {"parallel": {"pipeline_model_parallel_size": 2,
      "pipeline_schedule": "1f1b"}, "train": {"global_batch_size": 4096, "micro_batch_size": 1}}})");
  const std::vector<Figure> figures = draw_layout(run);
  ASSERT_EQ(figures.size(), 2);
  EXPECT_NE(figures[0].svg.find("8 ranks: tp 1, cp 1, dp 4, pp 2"), std::string::npos);
  EXPECT_NE(figures[1].svg.find("2 stages, 64 microbatches"), std::string::npos);
  EXPECT_NE(figures[1].caption.find("It shows 64 of 1024 microbatches per step."), std::string::npos);
  EXPECT_LT(figures[1].svg.size(), 200'000);
}

TEST(Pictures, LeaveOutWhatConfigDoesNotPermit) {
  RunData run = run_with({1});
  EXPECT_TRUE(draw_layout(run).empty());
  run.start = Json::parse(R"({"world_size": 8, "config": {"parallel": {"tensor_model_parallel_size": 3}}})");
  EXPECT_TRUE(draw_layout(run).empty());
  run.start = Json::parse(R"({"world_size": "8"})");
  EXPECT_TRUE(draw_layout(run).empty());
}

}  // namespace
}  // namespace metroplex::page::html_test

// Output of a run: the iteration line that scripts parse, JSON lines, TensorBoard records.
#include "run/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <regex>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "files/fault_file_system.h"
#include "files/memory_file_system.h"
#include "files/tensorboard.h"
#include "run/support.h"

namespace metroplex::test::metrics_test {
namespace {

using run::EvaluationMetrics;
using run::IterationMetrics;

files::PosixFileSystem disk;

class Lines final : public base::Log {
 public:
  void info(const std::string& line) override { infos.push_back(line); }
  void warn(const std::string& line) override { warnings.push_back(line); }
  std::vector<std::string> infos, warnings;
};

IterationMetrics some_metrics() {
  IterationMetrics m;
  m.last.iteration = 5;
  m.train_iters = 100;
  m.last.consumed_samples = 40;
  m.elapsed_ms_per_iteration = 123.44;
  m.tflops_per_rank = 1.25;
  m.last.outcome.lr = 3e-4;
  m.last.global_batch_size = 8;
  m.lm_loss = 4.5;
  m.last.outcome.grad_norm = 0.75;
  m.tokens_per_second = 1000.04;
  m.remaining_seconds = 3723;
  return m;
}

run::StepMetrics some_step() {
  run::StepMetrics m;
  m.iteration = 5;
  m.consumed_samples = 40;
  m.outcome.loss = 4.5;
  m.outcome.lr = 3e-4;
  m.outcome.grad_norm = 0.75;
  m.global_batch_size = 8;
  m.seconds = 0.12344;
  return m;
}

// The fields and widths of Megatron's line, in its order; our line has two more at the end.
std::string line_pattern(bool zeros_and_norm) {
  const std::string real = "[0-9]+\\.[0-9]", scientific = "-?[0-9]\\.[0-9]{6}E[+-][0-9]{2}";
  return " \\[\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\] iteration {8}5/ {5}100 \\| consumed samples: {11}40 \\| "
         "elapsed time per iteration \\(ms\\): " +
         real + " \\| throughput per GPU \\(TFLOP/s/GPU\\): " + real + "+ \\| learning rate: " + scientific +
         " \\| global batch size: {5}8 \\| lm loss: " + scientific + " \\| loss scale: 1\\.0 \\| grad norm: " + real +
         "{3} \\|" + (zeros_and_norm ? " num zeros: 12 \\| params norm: 3\\.500 \\|" : "") +
         " number of skipped iterations: {3}0 \\| number of nan iterations: {3}0 \\| tokens/s: 1000\\.0 \\| "
         "remaining: 1:02:03 \\|";
}

TEST(IterationLine, HasMegatronsFieldsInMegatronsForm) {
  IterationMetrics m = some_metrics();
  const std::string plain = run::iteration_line(m);
  EXPECT_TRUE(std::regex_match(plain, std::regex(line_pattern(false)))) << plain;
  m.last.outcome.num_zeros = 12;
  m.last.params_norm = 3.5;
  const std::string more = run::iteration_line(m);
  EXPECT_TRUE(std::regex_match(more, std::regex(line_pattern(true)))) << more;
  for (const double sign : {1.0, -1.0}) {
    m.lm_loss = std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
    EXPECT_NE(run::iteration_line(m).find("| lm loss: nan |"), std::string::npos) << run::iteration_line(m);
  }
}

TEST(IterationLine, GivesItsValuesToTheUsualExpressions) {
  const std::string line = run::iteration_line(some_metrics());
  const auto field = [&](const std::string& pattern) {
    std::smatch match;
    return std::regex_search(line, match, std::regex(pattern)) ? std::stod(match[1]) : NAN;
  };
  EXPECT_EQ(field("iteration\\s+(\\d+)/"), 5);
  EXPECT_EQ(field("lm loss: ([0-9.E+-]+) \\|"), 4.5);
  EXPECT_EQ(field("elapsed time per iteration \\(ms\\): ([0-9.]+) \\|"), 123.4);
  EXPECT_EQ(field("learning rate: ([0-9.E+-]+) \\|"), 3e-4);
  EXPECT_EQ(field("grad norm: ([0-9.]+) \\|"), 0.75);
}

TEST(EvaluationLine, GivesLossAndPerplexity) {
  EXPECT_EQ(run::evaluation_line({100, "validation", std::log(4.0), 0}),
            " validation loss at iteration 100 on validation set | lm loss value: 1.386294E+00 | lm loss PPL: "
            "4.000000E+00 | ");
  EXPECT_NE(run::evaluation_line({1, "test", 1000.0, 0}).find("PPL: 4.851652E+08"), std::string::npos)
      << "bounded by exp(20)";
}

TEST(FormatDuration, ReadsLikeAClock) {
  EXPECT_EQ(run::format_duration(59.4), "0:59");
  EXPECT_EQ(run::format_duration(61), "1:01");
  EXPECT_EQ(run::format_duration(36000 + 5), "10:00:05");
  EXPECT_EQ(run::format_duration(-3), "0:00");
  EXPECT_EQ(run::format_duration(std::numeric_limits<double>::infinity()), "0:00");
}

std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::ifstream in(path);
  std::vector<nlohmann::json> all;
  for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

TEST(Metrics, AreWrittenAsJsonLinesThatARestartContinues) {
  const Folder folder;
  config::Train config;
  config.metrics_file = folder.at("metrics.jsonl");
  Lines log;
  {
    run::Metrics metrics(config, disk, log);
    metrics.step(some_step());
    metrics.evaluation({5, "validation", 2.0, 40});
  }
  run::StepMetrics lost = some_step();
  lost.iteration = 6;
  lost.outcome.updated = false;
  lost.outcome.loss = std::numeric_limits<double>::quiet_NaN();
  lost.outcome.num_zeros = 0;
  run::Metrics(config, disk, log).step(lost);
  const auto lines = json_lines(config.metrics_file);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].at("iteration"), 5);
  EXPECT_EQ(lines[0].at("consumed_samples"), 40);
  EXPECT_EQ(lines[0].at("lm loss"), 4.5);
  EXPECT_EQ(lines[0].at("grad-norm"), 0.75);
  EXPECT_FALSE(lines[0].contains("num-zeros")) << "it was not computed";
  EXPECT_FALSE(lines[0].contains("skipped"));
  EXPECT_EQ(lines[2].at("skipped"), true);
  EXPECT_EQ(lines[1].at("split"), "validation");
  EXPECT_EQ(lines[1].at("lm loss"), 2.0);
  EXPECT_TRUE(lines[2].at("lm loss").is_null()) << "JSON knows no NaN";
  EXPECT_EQ(lines[2].at("num-zeros"), 0.0) << "computed, and none was zero";
  EXPECT_EQ(log.infos.size(), 3u) << "the evaluation between its rules";
  EXPECT_TRUE(log.warnings.empty());
}

TEST(Metrics, NumbersReadBackToTheSameDouble) {
  const Folder folder;
  config::Train config;
  config.metrics_file = folder.at("metrics.jsonl");
  Lines log;
  const std::vector<double> values{1.8940405, 1.0 / 3, 4.1571806669235229, 1e-300, 123456789.123456789, 0.1 + 0.2};
  {
    run::Metrics metrics(config, disk, log);
    for (const double value : values) {
      run::StepMetrics m = some_step();
      m.outcome.loss = value;
      metrics.step(m);
    }
  }
  const auto lines = json_lines(config.metrics_file);
  ASSERT_EQ(lines.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(lines[i].at("lm loss").get<double>(), values[i]);
}

TEST(Metrics, AFullDiskIsSaidOnceAndTheRunGoesOn) {
  config::Train config;
  config.metrics_file = "/dev/full";
  Lines log;
  run::Metrics metrics(config, disk, log);
  for (int i = 0; i < 3; ++i) metrics.step(some_step());
  ASSERT_EQ(log.warnings.size(), 1u);
  EXPECT_NE(log.warnings[0].find("/dev/full"), std::string::npos);
}

TEST(Metrics, AFullDiskEndsTheSinksAndNotTheRun) {
  files::MemoryFileSystem memory;
  files::FaultFileSystem full(memory, {.space_bytes = 2000});
  Lines log;
  config::Train config;
  config.metrics_file = "/metrics.jsonl";
  config.tensorboard_dir = "/events";
  run::Metrics metrics(config, full, log);
  for (int i = 0; i < 30; ++i) metrics.step(some_step());
  ASSERT_EQ(log.warnings.size(), 2u);
  for (const std::string& warning : log.warnings)
    EXPECT_NE(warning.find("No space left on device"), std::string::npos) << warning;
  EXPECT_EQ(full.written_bytes(), 2000);
  EXPECT_EQ(memory.list("/events").size(), 1u);
}

TEST(Metrics, APathThatCannotBeWrittenIsRefusedAtTheStart) {
  Lines log;
  config::Train config;
  config.metrics_file = "/nowhere/at/all.jsonl";
  EXPECT_THROW(run::Metrics(config, disk, log), base::Error);
  config.metrics_file.clear();
  config.tensorboard_dir = "/dev/null/events";
  EXPECT_THROW(run::Metrics(config, disk, log), base::Error);
}

// CRC-32C bit by bit, and TensorFlow's mask.
uint32_t plain_masked_crc(const std::string& bytes) {
  uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

// Payloads of a file of records; checks every checksum.
std::vector<std::string> records(const std::string& bytes) {
  std::vector<std::string> payloads;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    uint32_t length_crc = 0, payload_crc = 0;
    if (at + 12 > bytes.size()) throw std::runtime_error("a record's head is cut");
    std::memcpy(&length, &bytes[at], 8);
    std::memcpy(&length_crc, &bytes[at + 8], 4);
    EXPECT_EQ(length_crc, plain_masked_crc(bytes.substr(at, 8)));
    if (at + 16 + length > bytes.size()) throw std::runtime_error("a record is cut");
    payloads.push_back(bytes.substr(at + 12, length));
    std::memcpy(&payload_crc, &bytes[at + 12 + length], 4);
    EXPECT_EQ(payload_crc, plain_masked_crc(payloads.back()));
    at += 16 + length;
  }
  return payloads;
}

std::string scalar_field(const std::string& tag, float value) {
  std::string inner = "\x0A" + std::string(1, static_cast<char>(tag.size())) + tag + "\x15";
  inner.append(reinterpret_cast<const char*>(&value), sizeof value);
  return "\x0A" + std::string(1, static_cast<char>(inner.size())) + inner;
}

TEST(TensorBoard, ChecksumsAreCastagnolis) {
  EXPECT_EQ(files::crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(files::crc32c(""), 0U);
}

TEST(TensorBoard, RecordsCarryTheScalarsAndTheirChecksums) {
  const Folder folder;
  config::Train config;
  config.tensorboard_dir = folder.at("events/deep");
  Lines log;
  {
    run::Metrics metrics(config, disk, log);
    metrics.step(some_step());
    metrics.evaluation({5, "validation", 2.0, 40});
  }
  std::string bytes;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(config.tensorboard_dir)) {
    EXPECT_EQ(entry.path().filename().string().rfind("events.out.tfevents.", 0), 0u);
    std::ostringstream content;
    content << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    bytes = content.str();
    ++files;
  }
  ASSERT_EQ(files, 1);
  const auto payloads = records(bytes);
  ASSERT_EQ(payloads.size(), 3u);
  EXPECT_NE(payloads[0].find("brain.Event:2"), std::string::npos);
  for (const auto& [tag, value] : {std::pair{"lm loss", 4.5F}, {"grad-norm", 0.75F}, {"batch-size", 8.0F}}) {
    EXPECT_NE(payloads[1].find(scalar_field(tag, value)), std::string::npos) << tag;
  }
  EXPECT_NE(payloads[1].find(std::string("\x10\x05", 2)), std::string::npos) << "the step";
  EXPECT_NE(payloads[2].find(scalar_field("lm loss validation", 2.0F)), std::string::npos);
}

TEST(TensorBoard, GetsEveryNthStepAndNoPointWhereThereIsNoNumber) {
  const Folder folder;
  config::Train config;
  config.tensorboard_dir = folder.at("events");
  config.tensorboard_log_interval = 3;
  Lines log;
  {
    run::Metrics metrics(config, disk, log);
    for (int64_t i = 1; i <= 7; ++i) {
      run::StepMetrics m = some_step();
      m.iteration = i;
      if (i == 6) m.outcome.loss = m.outcome.grad_norm = std::numeric_limits<double>::infinity();
      metrics.step(m);
    }
  }
  std::ostringstream content;
  for (const auto& entry : std::filesystem::directory_iterator(config.tensorboard_dir))
    content << std::ifstream(entry.path(), std::ios::binary).rdbuf();
  const auto payloads = records(content.str());
  ASSERT_EQ(payloads.size(), 1u + 2u) << "steps 3 and 6";
  EXPECT_NE(payloads[1].find("lm loss"), std::string::npos);
  EXPECT_EQ(payloads[2].find("lm loss"), std::string::npos);
  EXPECT_NE(payloads[2].find("learning-rate"), std::string::npos);
}

TEST(IterationLine, HasOtherLossesBehindTheLoss) {
  IterationMetrics m = some_metrics();
  m.terms = {{"load_balancing_loss", 1.25}, {"z_loss", 2}};
  const std::string line = run::iteration_line(m);
  EXPECT_NE(
      line.find(" lm loss: 4.500000E+00 | load_balancing_loss: 1.250000E+00 | z_loss: 2.000000E+00 | loss scale:"),
      std::string::npos)
      << line;
}

run::StepMetrics step_of_experts() {
  run::StepMetrics m = some_step();
  m.outcome.terms = {{"z_loss", 0.5}};
  m.experts = {{1, 20, 10, 11, 12, 13, 14, {1.5, 2.5, 3.75}, {1.25, 1.75, 12.5}, 0.125, 2.5, 3.5},
               {3, 20, 1, 2, 3, 4, 5}};
  return m;
}

TEST(ExpertLines, HaveALineALayer) {
  const auto lines = run::expert_lines(step_of_experts().experts);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0].substr(0, lines[0].find('|')), " experts: tokens of an expert, mean of 20 steps           ");
  EXPECT_EQ(
      lines[2],
      "     1       10       11       12       13       14       |   1.500   2.500   3.750 |   1.250   1.750  12.500 "
      "|  12.50% |     2.50     3.50");
  const auto bars = [](const std::string& line) { return line.find('|') * 1000 + line.rfind('|'); };
  for (size_t i = 1; i < lines.size(); ++i) EXPECT_EQ(bars(lines[i]), bars(lines[0])) << lines[i];
}

TEST(Metrics, ExpertsGoToTheLogTheFileAndTensorBoard) {
  const Folder folder;
  config::Train config;
  config.metrics_file = folder.at("metrics.jsonl");
  config.tensorboard_dir = folder.at("tb");
  config.tensorboard_log_interval = 100;  // the table has its own interval
  Lines log;
  run::StepMetrics step = step_of_experts();
  step.experts[1].replicas = run::ReplicaMetrics{7, 2.5, 1.25, 1.75, 0.5};
  run::Metrics(config, disk, log).step(step);
  EXPECT_EQ(log.infos, run::expert_lines(step.experts));
  std::ifstream stream(config.metrics_file);
  const auto line = nlohmann::json::parse(stream);
  EXPECT_EQ(line.at("z_loss"), 0.5);
  ASSERT_EQ(line.at("experts").size(), 2U);
  const nlohmann::json first{{"layer", 1},
                             {"steps", 20},
                             {"tokens min", 10},
                             {"tokens p10", 11},
                             {"tokens p50", 12},
                             {"tokens p90", 13},
                             {"tokens max", 14},
                             {"experts max over mean", 1.5},
                             {"experts max over mean of a step", 2.5},
                             {"experts max over mean of the worst step", 3.75},
                             {"ranks max over mean", 1.25},
                             {"ranks max over mean of a step", 1.75},
                             {"ranks max over mean of the worst step", 12.5},
                             {"dropped", 0.125},
                             {"dispatch ms", 2.5},
                             {"combine ms", 3.5}};
  EXPECT_EQ(line["experts"][0], first);
  const nlohmann::json of_replicas{{"clones", 7},
                                   {"ranks max over mean without clones", 2.5},
                                   {"ranks max over mean with clones", 1.25},
                                   {"ranks max over mean with clones, worst", 1.75},
                                   {"clones ms", 0.5}};
  for (const auto& [name, value] : of_replicas.items()) EXPECT_EQ(line["experts"][1].at(name), value) << name;
  std::string points;
  for (const auto& entry : std::filesystem::directory_iterator(config.tensorboard_dir)) {
    std::ifstream events(entry.path(), std::ios::binary);
    points.append(std::istreambuf_iterator<char>(events), {});
  }
  EXPECT_NE(points.find("experts/layer 3/tokens max"), std::string::npos);
  EXPECT_EQ(points.find("lm loss"), std::string::npos);
}

}  // namespace
}  // namespace metroplex::test::metrics_test

// Whole runs of the trainer with train.trace_file and train.log_slowest_rank.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "files/file_system.h"
#include "run/small_corpus.h"
#include "run/support.h"
#include "run/trainer.h"

namespace metroplex::test {

class KeptLog final : public base::Log {
 public:
  void info(const std::string& line) override { lines += line + "\n"; }
  void warn(const std::string& line) override { warnings += line + "\n"; }
  std::string lines, warnings;
};

inline std::string read_text(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Losses, norms and other results of every step, without times.
inline std::vector<nlohmann::json> read_results(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    nlohmann::json values = nlohmann::json::parse(line);
    for (const char* time : {"iteration-time", "throughput", "tokens-per-second"}) values.erase(time);
    if (values.contains("iteration")) lines.push_back(values);
  }
  return lines;
}

struct TracedRun {
  config::Config config;
  TestLayout layout;
  std::shared_ptr<comm::Traffic> traffic = nullptr;
  std::function<void(int rank)> in_step = {};  // called once per step on every rank
  std::shared_ptr<files::FileSystem> disk = std::make_shared<files::PosixFileSystem>();
};

inline run::RunSummary train_rank(const TracedRun& run, const config::Config& config, const comm::World& world,
                                  KeptLog& log) {
  const auto stop = [&run, rank = world.rank()] {
    if (run.in_step) run.in_step(rank);
    return false;
  };
  return run::run_training(config, world, {kVocab, kVocab - 1, nullptr}, {&log, run.disk, stop, {}});
}

// Runs the ranks as threads; returns the log of rank 0.
inline KeptLog train(const TracedRun& run) {
  const config::Config config = cut(run.config, run.layout);
  const auto ranks = static_cast<int>(run.layout.ranks());
  comm::ThreadsOptions options{std::chrono::seconds(60)};
  options.traffic = run.traffic;
  std::vector<KeptLog> logs(static_cast<size_t>(ranks));
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), options, [&](const comm::World& world) {
    train_rank(run, config, world, logs[static_cast<size_t>(world.rank())]);
  });
  return logs[0];
}

}  // namespace metroplex::test

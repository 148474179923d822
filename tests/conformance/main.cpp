// metroplex_vectors [DIR]: replays every recorded case of DIR (default tests/vectors) that has a runner here. Exit 0
// only if nothing failed and at least one case ran.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>

#include "conformance/forms.h"
#include "conformance/report.h"

namespace metroplex::conformance {

#define RUNNERS(X)     \
  X(schedules)         \
  X(layers)            \
  X(hybrid_layers)     \
  X(echo_planner)      \
  X(microbatches)      \
  X(flops_memory)      \
  X(config_validation) \
  X(seeds)             \
  X(rank_groups) X(gpt_dataset_index) X(indexed_dataset) X(blending) X(data_parallel_misc) X(dist_opt_layout)
#define TENSOR_RUNNERS(X) X(tensor_parallel) X(lr_schedules) X(grad_scaler) X(ckpt_sharding) X(router)

#define DECLARE(name) void run_##name(const Json& file, Report& report);
RUNNERS(DECLARE)
TENSOR_RUNNERS(DECLARE)

// Null: the runner is in the build with torch only.
const std::map<std::string, Runner> kRunners = {
#define ENTRY(name) {#name ".json", run_##name},
    RUNNERS(ENTRY)
#ifndef METROPLEX_TORCH
#undef ENTRY
#define ENTRY(name) {#name ".json", nullptr},
#endif
        TENSOR_RUNNERS(ENTRY)};

int run_directory(const std::string& directory) {
  int passed = 0, failed = 0;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    const std::string name = path.filename().string();
    if (name == "golden_index.json") continue;  // of the runs that metroplex_parity replays
    const auto runner = kRunners.find(name);
    if (runner == kRunners.end() || runner->second == nullptr) {
      const bool unknown = runner == kRunners.end();
      std::cout << name << (unknown ? ": FAILED no runner knows this file\n" : ": needs the build with torch\n");
      failed += unknown ? 1 : 0;
      continue;
    }
    Report report;
    try {
      std::ifstream stream(path);
      runner->second(well_formed(path.stem().string(), Json::parse(stream), report), report);
    } catch (const std::exception& error) {
      report.failures.push_back(std::string("the file as a whole: ") + error.what());
    }
    std::cout << name << ": " << report.passed << " passed, " << report.failures.size() << " failed, "
              << report.waiting.size() << " waiting\n";
    for (const auto& line : report.failures) std::cout << "  FAILED " << line << "\n";
    for (const auto& line : report.waiting) std::cout << "  waits  " << line << "\n";
    passed += report.passed;
    failed += static_cast<int>(report.failures.size());
  }
  std::cout << passed << " passed, " << failed << " failed\n";
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace metroplex::conformance

int main(int argc, char** argv) {
  const std::string directory = argc > 1 ? argv[1] : "tests/vectors";
  if (!std::filesystem::is_directory(directory)) {
    std::cerr << "metroplex_vectors: '" << directory << "' is not a directory\n";
    return 2;
  }
  return metroplex::conformance::run_directory(directory);
}

// hf_load DIR [threads]: one rank loads a Hugging Face directory for evaluation, in its stored dtype, twice. Prints
// for the second load the seconds of the empty model and of its weights, and the CPU time of both.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "comm/launch.h"
#include "config/load.h"
#include "config/validate.h"
#include "files/file_system.h"
#include "hf/directory.h"
#include "timing.h"
#include "run/state.h"

namespace {

using namespace metroplex;
using Clock = std::chrono::steady_clock;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

int main(int argc, char** argv) {
  bench::use_run_settings(argv);
  if (argc < 2) {
    std::fprintf(stderr, "usage: hf_load DIR [threads]\n");
    return 2;
  }
  files::PosixFileSystem disk;
  config::Config config = config::load("", hf::read_settings(disk, argv[1]));
  config.model.from = argv[1];
  config.run.device = "cpu";
  config.data.mock_data = true;
  config::check(config, 1, config::Use::evaluation);
  config = config::resolved(config, 1);
  comm::ThreadsOptions options;
  options.threads_per_rank = argc > 2 ? std::atoi(argv[2]) : static_cast<int>(std::thread::hardware_concurrency());
  comm::run_threads(1, topology::RankGrid(1, config.parallel), options, [&](const comm::World& world) {
    for (const bool counts : {false, true}) {
      const double processor = processor_seconds();
      const auto begin = Clock::now();
      const auto assembly = step::assemble(config, world, config.model.vocab_size, true, models::build_stage, nullptr,
                                           step::InitialValues::loaded);
      const double empty = seconds_since(begin);
      const auto start = Clock::now();
      run::load_from_directory(*assembly, disk);
      if (counts)
        std::printf("model %.4f weights %.4f processor %.4f\n", empty, seconds_since(start),
                    processor_seconds() - processor);
    }
  });
}

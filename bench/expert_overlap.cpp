// expert_overlap [most ranks]: time of a training step in virtual time with imposed times of attention and experts,
// with and without parallel.overlap_moe_expert_parallel_comm, for several speeds of the link (docs/pipeline.md).
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "imposed_times.h"
#include "timing.h"

int main(int argc, char** argv) {
  using namespace metroplex;
  bench::use_run_settings(argv);
  const int most = argc > 1 ? std::atoi(argv[1]) : 64;
  std::printf("| ep | exchanges / computation | one after the other, s | in turns, s | bound, s | hidden |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (int ranks = 4; ranks <= most; ranks *= 2) {
    for (const double link : {0.25, 0.5, 1.0, 2.0}) {
      bench::ImposedRun run;
      run.ranks = ranks, run.microbatches = 32, run.link = link;
      const bench::Hidden hidden = bench::measure_hidden(run);
      const double exchanges = hidden.serial - hidden.compute;
      std::printf("| %d | %.2f | %.1f | %.1f | %.1f | %.1f %% |\n", ranks, exchanges / hidden.compute, hidden.serial,
                  hidden.overlapped, std::max(exchanges, hidden.compute), 100 * hidden.share);
      std::fflush(stdout);
    }
  }
  return 0;
}

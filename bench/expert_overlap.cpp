// expert_overlap [most ranks [picture.svg]]: time of a training step in virtual time with imposed times of attention
// and experts, with and without parallel.overlap_moe_expert_parallel_comm, for several speeds of the link
// (docs/pipeline.md).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "draw/text.h"
#include "files/file_system.h"
#include "imposed_times.h"
#include "timing.h"

namespace metroplex::bench {
namespace {

// The computations of rank 0 in a step of few microbatches: one pass after the other, and in turns.
std::string draw_steps() {
  ImposedRun run;
  run.microbatches = 6;
  std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1000 130\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n<rect width=\"1000\" height=\"130\" fill=\"white\"/>\n";
  double scale = 0;
  for (const bool overlaps : {false, true}) {
    run.overlaps = overlaps;
    const ImposedStep step = time_step(run);
    const double end = step.spans.back().end_s;  // the gradients are reduced later
    if (scale == 0) scale = 980 / end;
    const double y = overlaps ? 78 : 22;
    svg += draw::svg_text(10, y - 5, "",
                          draw::format(overlaps ? "in turns: %.1f s" : "one pass after the other: %.1f s", end));
    for (const ImposedSpan& span : step.spans) {
      svg += "<rect x=\"" + draw::format("%.5g", 10 + span.start_s * scale) + "\" y=\"" + draw::format("%.5g", y) +
             "\" width=\"" + draw::format("%.4g", (span.end_s - span.start_s) * scale) + "\" height=\"26\" fill=\"" +
             (span.backward ? "#8fc08f" : "#7fa6d6") + "\" stroke=\"white\" stroke-width=\"0.5\"/>\n";
    }
  }
  return svg +
         draw::svg_text(10, 122, " fill=\"#555\"",
                        "computation of rank 0 of 4; blue: forward, green: backward, white: waits for exchanges") +
         "</svg>\n";
}

}  // namespace
}  // namespace metroplex::bench

int main(int argc, char** argv) {
  using namespace metroplex;
  bench::use_run_settings(argv);
  const int most = argc > 1 ? std::atoi(argv[1]) : 64;
  if (argc > 2) files::PosixFileSystem().write_output(argv[2], bench::draw_steps());
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

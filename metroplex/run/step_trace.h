// Writes train.trace_file: spans of the iterations from train.trace_step_start to before train.trace_step_end, on
// every rank. A process of the file is a rank. Its threads are
//   - step: the iteration, its loader, pipeline actions, optimizer, parameter gather, log lines and saves
//   - segments: forwards and backwards of autograd regions
//   - operators: Metroplex's operators and libtorch's, without views
//   - collectives: group calls from their start until their wait has returned, with group, bytes and blocked time
// Times are the host's. On a GPU a span shows when the work was issued.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "run/library_spans.h"
#include "run/rank_recorder.h"
#include "run/rank_spans.h"
#include "run/run_context.h"

namespace metroplex::run {

// Throws base::Error("files") if `path` (train.trace_file) is a non-empty file that is not a trace, or if its folder
// does not exist.
void check_trace_file(files::FileSystem& disk, const std::string& path);

class StepTrace {
 public:
  // `run.world()` must report to `recorder`. Both must outlive this object.
  StepTrace(RunContext& run, RankRecorder& recorder);
  ~StepTrace();

  // Call before the loader of an iteration, and after its saves. The last traced iteration writes the file, which is
  // collective.
  void begin_step(int64_t iteration);
  void end_step();
  // Call at the end of the run. Writes the iterations so far if the run ends before the last traced one. Collective.
  void finish();

 private:
  class RegionSpans;
  void begin();
  void end();
  void close_step();
  void add_operation(const device::Operation& operation, TraceSpan::Time start, TraceSpan::Time end);
  void place_actions();
  std::string events() const;
  void write();

  struct TimedAction {
    plan::Action action;
    double seconds;
    TraceSpan::Time reported;
  };
  RunContext& run_;
  RankRecorder& recorder_;
  RankSpans spans_;
  std::vector<TimedAction> actions_;
  std::map<const void*, size_t> in_flight_;  // group calls without their wait: index of the span
  std::vector<std::unique_ptr<RegionSpans>> regions_;
  std::unique_ptr<LibrarySpans> library_;
  TraceSpan::Time origin_, step_start_;
  int64_t iteration_ = 0;
  bool active_ = false, in_step_ = false, written_ = false;
};

}  // namespace metroplex::run

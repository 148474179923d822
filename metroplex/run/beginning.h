// The beginning of a run: its log lines, the checkpoint or weights that it starts from, and its output files.
#pragma once

#include "run/run_context.h"
#include "run/run_saves.h"

namespace metroplex::run {

// Logs configuration, layout, data and warnings. eod: the end-of-document token, -1: none.
void log_start(const RunContext& run, int64_t eod);

// Files that the run of the loaded checkpoint wrote.
struct PastFiles {
  std::string metrics, expert_trace;
};
// Loads checkpoint.load, or model.from without one, and sets the position. `saves` is null for evaluations.
// Collective.
PastFiles load_start(RunContext& run, RunSaves* saves);

// Opens the metrics and trace files on rank 0. A resumed run appends to the files of the run that it resumes. Files
// of any other run are renamed.
void open_outputs(RunContext& run, const PastFiles& past);

}  // namespace metroplex::run

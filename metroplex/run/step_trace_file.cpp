#include "run/step_trace.h"

#include "base/error.h"
#include "comm/collectives.h"
#include "comm/failure.h"
#include "files/same_file.h"
#include "run/clock_offset.h"
#include "run/run_folders.h"

namespace metroplex::run {

void check_trace_file(files::FileSystem& disk, const std::string& path) {
  if (path.empty()) return;
  files::check_output(disk, {"train.trace_file", path});
  if (disk.file_size(path).value_or(0) == 0) return;
  const std::string start = base::TraceEvents().json().substr(0, 20);
  MPX_CHECK(disk.map(path).text().starts_with(start), "files", "train.trace_file = ", path,
            " exists and is not a trace; choose another path, or move that file away");
}

// Collective. Times of the file begin with the first traced iteration of rank 0.
std::string StepTrace::events() const {
  const comm::World& world = run_.world();
  const ClockOffset offset = measure_clock_offset(world.groups().world);
  int64_t origin = origin_.time_since_epoch().count();
  origin = std::stoll(comm::broadcast_string(std::to_string(origin), world.groups().world));
  base::TraceEvents events;
  events.name_process(world.rank(), base::concat(comm::rank_formatter(world.grid())(world.rank()), ", clock error ",
                                                 static_cast<double>(offset.error_ns) / 1000, " us"));
  spans_.write(world.rank(), TraceSpan::Time(TraceSpan::Time::duration(origin + offset.ns)), events);
  return events.events();
}

void StepTrace::write() {
  base::TraceEvents all;
  for (const std::string& of_rank : comm::gather_strings(events(), run_.groups().world)) all.append(of_rank);
  spans_.clear();
  if (!run_.first_rank()) return;
  const std::string path = run_.config().train.trace_file, text = all.json();
  try {
    const std::string aside = move_aside(path, run_.disk());
    if (!aside.empty())
      run_.say(base::concat(" train.trace_file = ", path, " belongs to another run; moved to ", aside));
    run_.disk().write_output(path, text);
    run_.say(base::concat(" wrote trace ", path, " (", static_cast<double>(text.size()) / 1e6, " MB)"));
  } catch (const base::Error& error) {
    run_.warn(base::concat(error.what(), "; training continues without train.trace_file"));
  }
}

}  // namespace metroplex::run

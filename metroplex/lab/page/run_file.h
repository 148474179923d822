// Reads metrics files (train.metrics_file): one JSON object per line with a step, an evaluation, the start of a run,
// memory, time, or the slowest rank. Unknown keys are ignored. A line that is not such an object is counted. A last
// line without its end is left for the next read, because the run may still write it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/file_system.h"
#include "files/same_file.h"
#include "page/run_line.h"

namespace metroplex::page {

// A value per iteration, with increasing iterations. NaN: the file has null.
struct Series {
  std::vector<int64_t> iterations;
  std::vector<double> values;

  // A repeated iteration is from a resumed run and replaces the entries from that iteration on.
  void append(int64_t iteration, double value);
  void remove_from(int64_t iteration);
  bool empty() const { return iterations.empty(); }
};

using Amounts = std::vector<std::pair<std::string, double>>;

// Memory in bytes by kind, or time in seconds by part.
struct Prediction {
  int64_t iteration = 0;  // of the measurement
  Amounts predicted, measured;
};

struct Slowest {
  int64_t from = 0, to = 0;  // iterations
  int64_t rank = 0;
  double seconds = 0;
  std::string why, text;
};

// Figures of rounded operands by layer and operand, of one step (run/metrics.h).
struct Rounding {
  int64_t iteration = 0;
  Json layers;  // null: none
};

struct RunData {
  std::string path, name;
  std::vector<std::pair<std::string, Series>> metrics;  // in the order of the file; also "<split> loss"
  std::vector<int64_t> skipped, restarts;               // iterations
  std::map<int64_t, Series> expert_imbalance;           // by layer: tokens of an expert, max / mean
  std::map<int64_t, Prediction> memory;                 // by rank
  std::optional<Prediction> time;
  std::vector<Slowest> slowest;
  Rounding rounding;  // of the last measured step
  Json start;         // value of the last line {"run": ...}; null without one
  int64_t unreadable_lines = 0;

  const Series* find(std::string_view metric) const;
  Series& metric(const std::string& metric);
  // Removes the entries of an earlier process of the run, which a resumed one replaces.
  void remove_from(int64_t iteration);
};

// Returns `run`, or the metrics file in the directory `run`. Throws base::Error("files") unless there is exactly one.
std::string find_metrics_file(files::FileSystem& disk, const std::string& run);

// Reads a file that may grow.
class RunReader {
 public:
  // Throws base::Error("files") if there is no file or it begins with another kind of line.
  RunReader(files::FileSystem& disk, const std::string& path);
  // Returns false if the file has no new line, or cannot be opened because it is being replaced. Reads a file that
  // was replaced or became shorter from its beginning.
  bool read_more();
  const RunData& run() const { return run_; }
  void rename(const std::string& name) { run_.name = name; }

 private:
  // The lines of the file next to the metrics file (run/metrics.h), which every start of the run replaces.
  void read_description();
  void add_line(std::string_view text, RunLine& line);
  void add_step(const RunLine& line);
  // For lines with lists or objects.
  void add_nested(const Json& json);
  void restart_at(int64_t iteration);
  void clear();

  files::FileSystem& disk_;
  RunData run_;
  std::string description_;  // as last read
  files::Bytes bytes_;       // as last read; the open map keeps its inode from a new file
  std::optional<files::FileId> id_;
  size_t position_ = 0;     // bytes read, up to the end of a line
  int64_t last_step_ = -1;  // iteration
};

// Reads the runs of a command line. They are named after their directories or files; equal names become paths.
std::vector<RunReader> read_runs(files::FileSystem& disk, const std::vector<std::string>& runs);

}  // namespace metroplex::page

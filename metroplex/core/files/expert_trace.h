// Load of every expert in every iteration, as written by train.expert_trace_file (docs/moe.md). The format is JSON
// lines; the first line describes the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace metroplex::files {

struct ExpertTraceHead {
  int64_t num_experts = 0, topk = 0;
  // Sizes of the groups that share a layer's experts. Source s has expert tensor-parallel rank s % etp. With r = s /
  // etp it holds experts [r * num_experts / ep, (r + 1) * num_experts / ep).
  int64_t ep = 1, etp = 1;
  std::vector<int64_t> layers;  // global indices of the MoE layers

  int64_t sources() const { return ep * etp; }
  bool operator==(const ExpertTraceHead&) const = default;
};

struct ExpertTraceStep {
  int64_t iteration = 0;
  // tokens [layer, source, expert]: assignments of a step's tokens to experts, in the order of the head, over all
  // ranks of a source. dropped [layer]: assignments beyond an expert's capacity.
  std::vector<int64_t> tokens, dropped;
};

struct ExpertTrace {
  ExpertTraceHead head;
  std::vector<ExpertTraceStep> steps;  // ascending by iteration

  // Returns the tokens of a layer (an index of head.layers) and an expert, summed over sources.
  int64_t tokens(const ExpertTraceStep& step, size_t layer, int64_t expert) const;
};

// Throws base::Error("files") with file, line and problem. If an iteration occurs twice, as after a restart from a
// checkpoint, the later one is used. Ignores an incomplete last line, as left by a killed run.
ExpertTrace read_expert_trace(FileSystem& disk, const std::string& path);

// Returns `run` if it is a file, else the only trace in the folder `run`. Traces of earlier runs in the folder
// (FILE.N) are ignored. Throws base::Error("files").
std::string find_expert_trace(FileSystem& disk, const std::string& run);

// Throws base::Error("files", ...) if `path` contains anything but an expert trace, so that no other data is
// overwritten.
void check_place_of_trace(FileSystem& disk, const std::string& path);

class ExpertTraceWriter {
 public:
  // Appends to an existing file. Throws base::Error("files") if that is not a trace with the same head, or if it
  // cannot be written.
  ExpertTraceWriter(FileSystem& disk, const std::string& path, const ExpertTraceHead& head);
  // Throws base::Error("files") if writing fails.
  void add(const ExpertTraceStep& step);

 private:
  ExpertTraceHead head_;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace metroplex::files

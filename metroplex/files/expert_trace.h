// The load of every expert in every iteration, as train.expert_trace_file has it (docs/moe.md): JSON lines, the
// first of which says what the others hold.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "files/file_system.h"

namespace metroplex::files {

struct ExpertTraceHead {
  int64_t num_experts = 0, topk = 0;
  // Of the ranks that share a layer's experts: source s has expert_tensor_parallel place s % etp and holds experts [s
  // / etp * num_experts / ep, (s / etp + 1) * num_experts / ep).
  int64_t ep = 1, etp = 1;
  std::vector<int64_t> layers;  // global numbers of those with experts

  int64_t sources() const { return ep * etp; }
  bool operator==(const ExpertTraceHead&) const = default;
};

struct ExpertTraceStep {
  int64_t iteration = 0;
  // Assignments of a step's tokens to experts: [layer, source, expert], in the order of the head, of all ranks that
  // are the same source, and of those beyond an expert's capacity, [layer].
  std::vector<int64_t> tokens, dropped;
};

struct ExpertTrace {
  ExpertTraceHead head;
  std::vector<ExpertTraceStep> steps;  // by iteration, ascending

  // Of a layer (an index of head.layers) and an expert, summed over sources.
  int64_t tokens(const ExpertTraceStep& step, size_t layer, int64_t expert) const;
};

// Throws base::Error("files") naming file, line and what is wrong. Of an iteration that is there again, as after a
// restart from a checkpoint, the later one counts. A last line without an end, as a killed run leaves it, is left
// out.
ExpertTrace read_expert_trace(FileSystem& disk, const std::string& path);

// `run` itself, or the only trace in the folder `run`, beside which those of earlier runs may lie as FILE.N. Throws
// base::Error("files").
std::string find_expert_trace(FileSystem& disk, const std::string& run);

// base::Error("files", ...) where `path` holds something that is no expert trace, which nobody may lose by it.
void check_place_of_trace(FileSystem& disk, const std::string& path);

class ExpertTraceWriter {
 public:
  // Goes on behind what is in the file. Throws base::Error("files") where that is no trace of the same head, or
  // nothing can be written.
  ExpertTraceWriter(FileSystem& disk, const std::string& path, const ExpertTraceHead& head);
  // Throws base::Error("files") when it could not be written.
  void add(const ExpertTraceStep& step);

 private:
  ExpertTraceHead head_;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace metroplex::files

// A user-defined pipeline layout: the layers of each stage. As a string it has one letter per layer (E embedding, t
// transformer layer, m multi-token prediction, L loss). '|' separates stages, commas are ignored, `x*n` and `(..)*n`
// repeat without nesting: "Et*3|(tt|)*4,tL". Stage s belongs to pp rank s % pp and is its chunk s / pp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/parallel.h"
#include "plan/pipeline_table.h"

namespace metroplex::plan {

enum class LayerKind {
  embedding,
  decoder,
  mtp,
  loss,
  encoder
};  // encoder: only for Megatron's syntax; no model has one

struct PipelineLayout {
  int64_t num_stages = 1;                      // pp
  std::vector<std::vector<LayerKind>> stages;  // pp * vpp stages in model order

  int64_t num_chunks() const { return static_cast<int64_t>(stages.size()) / num_stages; }
  const std::vector<LayerKind>& stage(int64_t pp_rank, int64_t chunk) const {
    return stages[static_cast<size_t>(chunk * num_stages + pp_rank)];
  }
  int64_t count(LayerKind kind) const;
};

// Throws base::Error("plan") for an unknown letter, an invalid repetition, or a number of stages that is not a
// multiple of pp.
PipelineLayout parse_layout(const std::string& text, int64_t num_stages);

// Throws unless the layout is a valid model. The embedding is first and the loss last, each once; the number of
// transformer layers matches the model. The mtp layers follow them in one stage, which is the last chunk of its rank.
// With several chunks, rank 0 may have mtp layers only in that stage. Returns whether the mtp layers and the loss are
// on different ranks.
bool check_layout(const PipelineLayout& layout, int64_t num_layers, int64_t num_mtp_layers);

// The transformer layers of every pipeline stage. The split is even, differs on the first and last pp rank, counts
// embedding and loss as layers, or follows a layout string. Layers are numbered along the model, so a stage's first
// layer is the sum over the previous stages.
struct StageLayers {
  int64_t pp_rank = 0;
  int64_t chunk = 0;        // virtual stage on that rank
  int64_t first_layer = 0;  // global index of the first transformer layer, also if num_layers is 0
  int64_t num_layers = 0;
  int64_t num_mtp_layers = 0;  // multi-token prediction
  bool has_embedding = false;
  bool has_loss = false;
  bool operator==(const StageLayers&) const = default;
};

// Returns the placement of stages: a V for zb_v and dualpipe_v, else always from the first rank to the last.
StagePlacement stage_placement(const config::Parallel& parallel);

// Returns one entry per stage in model order, placed by stage_placement(). Throws base::Error("plan") with the key
// and a suggested fix if the numbers do not fit.
std::vector<StageLayers> split_stages(const config::Parallel& parallel, int64_t num_layers,
                                      int64_t num_mtp_layers = 0);

// Returns the chunks per pp rank: from the layout string if there is one, else virtual_pipeline_model_parallel_size.
int64_t num_model_chunks(const config::Parallel& parallel);

}  // namespace metroplex::plan

// A pipeline layout: which layers each stage of the model holds, given by the user. As a string, one letter per layer
// (E embedding, t transformer layer, m multi-token prediction, L loss), '|' between stages, commas for readability,
// `x*n` and `(..)*n` for repetition, without nesting: "Et*3|(tt|)*4,tL". Stage s belongs to pp rank s % pp and is
// its chunk s / pp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/parallel.h"
#include "plan/pipeline_table.h"

namespace metroplex::plan {

enum class LayerKind { embedding, decoder, mtp, loss, encoder };  // encoder: a name of Megatron's, in no model here

struct PipelineLayout {
  int64_t num_stages = 1;                      // pp
  std::vector<std::vector<LayerKind>> stages;  // in model order: pp * vpp of them

  int64_t num_chunks() const { return static_cast<int64_t>(stages.size()) / num_stages; }
  const std::vector<LayerKind>& stage(int64_t pp_rank, int64_t chunk) const {
    return stages[static_cast<size_t>(chunk * num_stages + pp_rank)];
  }
  int64_t count(LayerKind kind) const;
};

// Throws base::Error("plan") for an unknown letter, a repetition that cannot be read, or a number of stages that is
// not a multiple of pp.
PipelineLayout parse_layout(const std::string& text, int64_t num_stages);

// Throws unless the layout is a model: the embedding first and the loss last, each once; as many transformer layers
// as the model has; the mtp layers after them, all in one stage, which is the last chunk of its rank (with several
// chunks, rank 0 may have them nowhere else). Returns whether the mtp layers are on another rank than the loss.
bool check_layout(const PipelineLayout& layout, int64_t num_layers, int64_t num_mtp_layers);

// Which transformer layers every pipeline stage holds: an even split by default; fewer or more layers on the first
// and last pp rank; the embedding and the loss each counted as a layer; or a layout string. Layers are numbered along
// the model, so a stage's first layer is the running sum over the stages before it.

struct StageLayers {
  int64_t pp_rank = 0;
  int64_t chunk = 0;        // virtual stage on that rank
  int64_t first_layer = 0;  // global number of the first transformer layer, also where num_layers is 0
  int64_t num_layers = 0;
  int64_t num_mtp_layers = 0;  // multi-token prediction
  bool has_embedding = false;
  bool has_loss = false;
  bool operator==(const StageLayers&) const = default;
};

// Where the stages are: with any schedule that there is, always from the first rank to the last.
StagePlacement stage_placement(const config::Parallel& parallel);

// One entry a stage, in model order, as stage_placement() places them. Throws base::Error("plan") where the numbers
// do not fit, with the key and a way out.
std::vector<StageLayers> split_stages(const config::Parallel& parallel, int64_t num_layers,
                                      int64_t num_mtp_layers = 0);

// Chunks a pp rank holds: what the layout string implies where there is one, else
// virtual_pipeline_model_parallel_size.
int64_t num_model_chunks(const config::Parallel& parallel);

}  // namespace metroplex::plan

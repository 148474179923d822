// A pipeline layout: which layers each stage of the model holds, said by the user. As a string, one letter a layer
// (E embedding, t transformer layer, m multi-token prediction, L loss), '|' between stages, commas for the eye only,
// `x*n` and `(..)*n` for repetition, without nesting: "Et*3|(tt|)*4,tL". Stage s belongs to pp rank s % pp and is
// its chunk s / pp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
// as the model has; the mtp layers after them, all in one stage, which is the last chunk of its rank and, with
// several chunks, may be on rank 0 only there. Returns whether the mtp layers stand on another rank than the loss.
bool check_layout(const PipelineLayout& layout, int64_t num_layers, int64_t num_mtp_layers);

}  // namespace metroplex::plan

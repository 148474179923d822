// What a rank's share of the model consists of, by shape: the parameters of every block in the order in which the
// layers list them, and the bytes that a block keeps of one microbatch between forward and backward. No layer is
// made for it; a test holds the list against the real ones, name by name and size by size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/memory_work.h"
#include "plan/stage_split.h"
#include "topology/placement.h"

namespace metroplex::plan {

struct RankParam {
  std::string name;
  std::vector<int64_t> shape;  // of the local part
  topology::Role role = topology::Role::weight;
  bool shared = false;  // with another stage: the word embedding under a tied head
  int uses_per_microbatch = 1;
  int64_t numel() const;
  bool has_matrices() const { return topology::has_matrices({.role = role}, shape.size()); }
};

// Bytes of one microbatch. `moved` lies elsewhere with memory.offload_activations = file.
struct SavedBytes {
  int64_t moved = 0, stays = 0;
  int64_t total() const { return moved + stays; }
};

struct RankBlock {
  std::vector<size_t> params;  // what it reads, indices into RankModel::params
  size_t num_own = 0;          // of them, those that no block before it has: a ZeRO-3 unit
  bool is_layer = false;
  SavedBytes saved;  // its input included, its output not
  int64_t input = 0;
  Work work;
};

struct RankChunk {
  StageLayers layers;
  std::vector<RankBlock> blocks;
};

struct RankModel {
  std::vector<RankParam> params;  // all chunks, forward order, a shared one once
  std::vector<RankChunk> chunks;
  int64_t border = 0;  // bytes of a tensor that crosses a stage border
  int64_t loss = 0;    // of one microbatch's loss
};

// Bytes of a number of precision.params_dtype, and of what is computed "in fp32".
int64_t element_bytes(config::ParamsDtype params_dtype);
int64_t wide_bytes(config::ParamsDtype params_dtype);

// `config` is resolved. Every tensor-parallel rank of a stage holds the same shapes.
RankModel rank_model(const config::Config& config, int64_t pp_rank, int64_t vocab_size);

}  // namespace metroplex::plan

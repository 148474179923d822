// Builds the blocks of any slice of a model. A model family is one file and one line of the table in registry.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "config/model.h"
#include "cuda/launch_point.h"
#include "moe/context.h"
#include "nn/layer_context.h"
#include "nn/param_init.h"
#include "nn/segment.h"

namespace metroplex::models {

// The layers of one model chunk, by global number, and whether it begins or ends the model.
struct StageSlice {
  int64_t first_layer = 0, num_layers = 0;
  bool has_embedding = false, has_loss = false;
};

struct ModelContext {
  config::Model model;     // resolved: no derived value is left 0, except that num_query_groups, kv_channels,
                           // ffn_hidden_size may be
  int64_t vocab_size = 0;  // unpadded
  int64_t positions = 0;   // that training needs of a rotary table; 0: model.max_position_embeddings
  bool sequence_parallel = false;
  double label_smoothing = 0;
  comm::Group tp, cp;
  moe::ExpertContext experts;  // where the model has any
  at::ScalarType dtype = at::kFloat;
  cuda::Target target;
  bool fp32_residual_connection = false;  // the stream between blocks is fp32 where dtype is half
  uint64_t seed = 1234;                   // of initialisation and dropout
  bool deferred_initialization = false;   // parameters are described, not made: see nn::LayerContext
  nn::SavePolicy saving;                  // what layers keep between forward and backward
  // Set for model.sharded_initialization; one object for all chunks of the rank. Holders of a shared parameter then
  // start apart, and the owner's values are the right ones (train/sharing.h).
  std::shared_ptr<nn::InitStreams> init_streams;
};

// Blocks in forward order: embedding (it takes no values), layers, head. The head returns, where batch.labels is
// defined, kLoss: the scalar sum over the microbatch of loss_mask * loss of each token (at least fp32); otherwise
// kLogits [s, b, vocab_size], gathered and without padding. Between them passes kHiddenStates.
nn::Blocks build_stage(const ModelContext& context, const StageSlice& slice);

// The families that model.family may name.
std::vector<std::string> family_names();

}  // namespace metroplex::models

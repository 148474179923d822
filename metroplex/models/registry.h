// Builds the blocks of any slice of a model. A model family is a line of the table in registry.cpp, and a file where
// it has more than a decoder.
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

// The layers of one model chunk, by global number, whether it begins or ends the model, and whether it holds the
// layers for multi-token prediction that the model may have.
struct StageSlice {
  int64_t first_layer = 0, num_layers = 0;
  bool has_embedding = false, has_loss = false, has_multi_token = has_loss;
};

// What the layers of a model are made with, and what only its ends need. `streams` is set for
// model.sharded_initialization, and one object for all chunks of the rank.
struct ModelContext : nn::LayerContext {
  // Resolved: no derived value is left 0, except that num_query_groups, kv_channels, ffn_hidden_size may be.
  explicit ModelContext(config::Model its_model) : model(std::move(its_model)) {
    init_std = model.init_method_std;
    num_layers = model.num_layers;
  }

  config::Model model;
  int64_t vocab_size = 0;  // unpadded
  int64_t positions = 0;   // that training needs of a rotary table; 0: model.max_position_embeddings
  double label_smoothing = 0;
  moe::ExpertContext experts;             // where the model has any
  bool fp32_residual_connection = false;  // the stream between blocks is fp32 where dtype is half
};

// Blocks in forward order: embedding (it takes no values), layers, head. The head returns, where batch.labels is
// defined, kLoss: the scalar sum over the microbatch of loss_mask * loss of each token (at least fp32); otherwise
// kLogits [s, b, vocab_size], gathered and without padding. Between them passes kHiddenStates.
nn::Blocks build_stage(const ModelContext& context, const StageSlice& slice);

// The families that model.family may name.
std::vector<std::string> family_names();

}  // namespace metroplex::models

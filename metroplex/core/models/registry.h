// Builds the blocks of any stage of a model. Each model family is a row of the table in registry.cpp. A family
// that is more than a plain decoder also has its own file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "config/model.h"
#include "device/launch_point.h"
#include "moe/context.h"
#include "nn/layer_context.h"
#include "nn/param_init.h"
#include "nn/segment.h"

namespace metroplex::models {

// The layers of one model chunk by global number, and whether it contains the embedding, the loss and the multi-token
// prediction layers (if the model has any).
struct StageSpec {
  int64_t first_layer = 0, num_layers = 0;
  bool has_embedding = false, has_loss = false, has_multi_token = has_loss;
};

// Construction arguments of a model's layers, and of its embedding and head. `streams` is set for
// model.sharded_initialization; all chunks of a rank share it.
struct ModelContext : nn::LayerContext {
  // Requires a resolved config. No derived value may be 0, except num_query_groups, kv_channels and
  // ffn_hidden_size.
  explicit ModelContext(config::Model its_model) : model(std::move(its_model)) {
    init_std = model.init_method_std;
    num_layers = model.num_layers;
  }

  config::Model model;
  int64_t vocab_size = 0;  // unpadded
  int64_t positions = 0;   // rotary table length for training; 0: model.max_position_embeddings
  double label_smoothing = 0;
  int64_t loss_chunk_tokens = 0;          // memory.loss_chunk_tokens
  bool head_defers_weights = false;       // parallel.defer_embedding_wgrad_compute
  moe::ExpertContext experts;             // only if the model has experts
  bool fp32_residual_connection = false;  // the residual stream is fp32 although dtype is half
};

// Returns blocks in forward order: embedding (takes no values), layers, head. They pass kHiddenStates. If
// batch.labels is defined, the head returns kLoss: the scalar sum over the microbatch of loss_mask * loss of each
// token (at least fp32). Otherwise it returns kLogits [s, b, vocab_size], gathered and without padding.
nn::Blocks build_stage(const ModelContext& context, const StageSpec& stage);

// Returns the valid values of model.family.
std::vector<std::string> family_names();

}  // namespace metroplex::models

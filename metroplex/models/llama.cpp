#include "base/error.h"
#include "models/decoder.h"
#include "models/registry.h"

namespace metroplex::models {

// RMSNorm, rotary positions, gated MLP, no biases (qkv excepted).
nn::Blocks build_llama(const ModelContext& context, const StageSlice& slice) {
  const config::Model& model = context.model;
  MPX_CHECK(model.normalization == config::Normalization::RMSNorm &&
                model.position_embedding_type == config::PositionEmbedding::rope && model.gated_linear_unit &&
                !model.add_bias_linear,
            "models",
            "model.family = llama means normalization RMSNorm, position_embedding_type rope, gated_linear_unit true "
            "and add_bias_linear false; "
            "set them, or use family gpt for other combinations");
  return build_decoder(context, slice, nullptr);
}

}  // namespace metroplex::models

#include "base/error.h"
#include "models/decoder.h"
#include "models/registry.h"

namespace metroplex::models {

// Llama with experts in every layer (arXiv 2401.04088).
nn::Blocks build_mixtral(const ModelContext& context, const StageSlice& slice) {
  const config::Model& model = context.model;
  MPX_CHECK(
      model.normalization == config::Normalization::RMSNorm &&
          model.position_embedding_type == config::PositionEmbedding::rope && model.gated_linear_unit &&
          !model.add_bias_linear && model.has_experts(),
      "models",
      "model.family = mixtral means normalization RMSNorm, position_embedding_type rope, gated_linear_unit true, "
      "add_bias_linear false, num_moe_experts above 0; set them, or use family gpt for other combinations");
  return build_decoder(context, slice, nullptr);
}

}  // namespace metroplex::models

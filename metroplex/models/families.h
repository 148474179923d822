// One function a model family; registry.cpp holds the table.
#pragma once

#include "models/registry.h"

namespace metroplex::models {

// Every combination that config::Model can say.
nn::Blocks build_gpt(const ModelContext& context, const StageSlice& slice);
// GPT whose last layer takes its queries from an embedding of the position to be predicted.
nn::Blocks build_codegeex(const ModelContext& context, const StageSlice& slice);
// RMSNorm, rotary positions, gated MLP, no biases (qkv excepted).
nn::Blocks build_llama(const ModelContext& context, const StageSlice& slice);

}  // namespace metroplex::models

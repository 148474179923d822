// One function a model family; registry.cpp holds the table.
#pragma once

#include <memory>
#include <vector>

#include "models/registry.h"

namespace metroplex::models {

using Segments = std::vector<std::unique_ptr<nn::Segment>>;

// Every combination that config::Model can say.
Segments build_gpt(const ModelContext& context, const StageSlice& slice);
// GPT whose last layer takes its queries from an embedding of the position to be predicted.
Segments build_codegeex(const ModelContext& context, const StageSlice& slice);
// RMSNorm, rotary positions, gated MLP, no biases (qkv excepted).
Segments build_llama(const ModelContext& context, const StageSlice& slice);

}  // namespace metroplex::models

// A whole model as one stage, with tensor parallelism.
#pragma once

#include <memory>

#include "models/tools.h"
#include "pipeline/stage.h"

namespace metroplex::test {

struct StagePlace {
  comm::Group tp;
  bool sequence_parallel = false;
  at::ScalarType dtype = at::kDouble;
};

inline std::unique_ptr<pipeline::Stage> whole_stage(const config::Model& model, int64_t vocab_size,
                                                    const StagePlace& place, const config::Memory& memory) {
  models::ModelContext context(model);
  context.vocab_size = vocab_size;
  context.dtype = place.dtype;
  nn::set_tensor_parallel(context, place.tp, place.sequence_parallel);
  const auto store = nn::make_activation_store(memory);
  context.saving = nn::save_policy(memory, store);
  nn::Blocks blocks = models::build_stage(context, {0, model.num_layers, true, true});
  auto how = pipeline::stage_saving(memory, blocks, place.tp, store);
  auto stage = std::make_unique<pipeline::Stage>(std::move(blocks), std::move(how));
  give_main_grad(stage->params());
  shake_vectors(stage->params());
  return stage;
}

}  // namespace metroplex::test

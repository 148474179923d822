#include "nn/recompute.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/error.h"
#include "comm/collectives.h"

namespace metroplex::nn {

static bool is_router(const std::unique_ptr<Segment>& segment) {
  const auto module = segment->traits().module;
  return module == config::CudaGraphModule::moe_router || module == config::CudaGraphModule::moe;
}

static std::vector<RecomputedChunk> expert_chunks(const Blocks& blocks) {
  std::vector<RecomputedChunk> chunks;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto& segments = blocks[i].segments;
    const auto first = std::find_if(segments.begin(), segments.end(), is_router);
    if (first != segments.end()) chunks.push_back({i, i + 1, static_cast<size_t>(first - segments.begin())});
  }
  return chunks;
}

std::vector<RecomputedChunk> recomputed_chunks(const config::Memory& memory, const Blocks& blocks) {
  if (memory.recomputes("moe")) return expert_chunks(blocks);
  if (!memory.recomputes_all()) return {};
  const bool uniform = memory.recompute_method == config::RecomputeMethod::uniform;
  MPX_CHECK(memory.recompute_method != config::RecomputeMethod::none, "nn",
            "memory.recompute_method is empty with recompute_granularity full; choose uniform or block");
  MPX_CHECK(memory.recompute_num_layers > 0, "nn", "memory.recompute_num_layers = ", memory.recompute_num_layers,
            " with recompute_granularity full; it must be at least 1");
  const auto count = static_cast<size_t>(memory.recompute_num_layers);
  std::vector<RecomputedChunk> chunks;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!blocks[i].is_layer) continue;
    if (!uniform && chunks.size() == count) break;
    const bool joins = uniform && !chunks.empty() && chunks.back().end == i && i - chunks.back().begin < count;
    if (joins) {
      chunks.back().end = i + 1;
    } else {
      chunks.push_back({i, i + 1, 0});
    }
  }
  return chunks;
}

SavedInput::SavedInput(const Values& in, const comm::Group& split_over, ActivationStore* store)
    : split_over_(split_over) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, value] : in) {
    at::Tensor x = value.tensor().detach();
    saved_.push_back({name, {}, {}});
    if (split_over_.size() > 1 && x.is_floating_point()) {
      MPX_CHECK(x.numel() % split_over_.size() == 0, "nn", "memory.distribute_saved_activations: ", x.numel(),
                " values cannot be split evenly over ", split_over_.size(), " tensor-parallel ranks");
      saved_.back().sizes = x.sizes().vec();
      x = comm::select_shard(x.reshape({-1}), 0, split_over_).clone();
    }
    tensors.push_back(std::move(x));
  }
  if (store != nullptr) store->begin();
  for (size_t i = 0; i < tensors.size(); ++i)
    saved_[i].saved = store != nullptr ? store->keep(tensors[i]) : Saved(tensors[i]);
  tensors.clear();
  if (store != nullptr) set_ = store->end();
}

Values SavedInput::take() {
  set_.restore();
  Values values;
  for (Entry& entry : saved_) {
    const Saved saved = std::move(entry.saved);
    entry.saved = Saved();
    const bool split = !entry.sizes.empty();
    values.add(std::move(entry.name),
               split ? comm::all_gather(saved.get(), 0, split_over_).view(entry.sizes) : saved.get());
  }
  saved_.clear();
  return values;
}

}  // namespace metroplex::nn

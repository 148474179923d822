#include "nn/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/error.h"
#include "comm/autograd_node.h"
#include "comm/collectives.h"

namespace metroplex::nn {

std::vector<RecomputedChunk> recomputed_chunks(const config::Memory& memory,
                                               const std::vector<std::unique_ptr<Segment>>& segments) {
  if (!memory.recomputes_all()) return {};
  const bool uniform = memory.recompute_method == config::RecomputeMethod::uniform;
  MPX_CHECK(memory.recompute_method != config::RecomputeMethod::none, "nn",
            "memory.recompute_method is empty with recompute_granularity full; choose uniform or block");
  MPX_CHECK(memory.recompute_num_layers > 0, "nn", "memory.recompute_num_layers = ", memory.recompute_num_layers,
            " with recompute_granularity full; it must be at least 1");
  const auto count = static_cast<size_t>(memory.recompute_num_layers);
  std::vector<RecomputedChunk> chunks;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!segments[i]->is_block()) continue;
    if (!uniform && chunks.size() == count) break;
    const bool joins = uniform && !chunks.empty() && chunks.back().end == i && i - chunks.back().begin < count;
    if (joins) {
      chunks.back().end = i + 1;
    } else {
      chunks.push_back({i, i + 1});
    }
  }
  return chunks;
}

KeptInput::KeptInput(const at::Tensor& x, const comm::Group& split_over, ActivationStore* store)
    : split_over_(split_over), sizes_(x.sizes().vec()) {
  const at::NoGradGuard no_grad;
  at::Tensor part = x.detach();
  if (split_over_.size() > 1) {
    MPX_CHECK(x.numel() % split_over_.size() == 0, "nn", "memory.distribute_saved_activations: ", x.numel(),
              " values cannot be split evenly over ", split_over_.size(), " tensor-parallel ranks");
    part = comm::own_slice(x.reshape({-1}), 0, split_over_).clone();
  }
  if (store != nullptr) store->begin();
  saved_ = store != nullptr ? store->keep(part) : Saved(part);
  part = at::Tensor();
  if (store != nullptr) set_ = store->end();
}

at::Tensor KeptInput::take() {
  set_.restore();
  const Saved saved = std::move(saved_);
  saved_ = Saved();
  return split_over_.size() > 1 ? comm::all_gather(saved.get(), 0, split_over_).view(sizes_) : saved.get();
}

Input normalize(Norm& norm, const at::Tensor& x, const SavePolicy& saving) {
  NormSaved raw;
  at::Tensor out = norm.apply(x, &raw);
  if (!at::GradMode::is_enabled()) return out;
  const Saved kept = saving.keep(x);
  raw.x = at::Tensor();
  out = comm::attach(out, {x}, [&norm, kept, raw](const at::Tensor& dy) -> comm::Gradients {
    NormSaved whole = raw;
    whole.x = kept.get();
    return {norm.backward(dy, whole)};
  });
  if (!saving.layernorm) return out;
  return {out, Saved::remade([&norm, kept] { return norm.apply(kept.get(), nullptr); })};
}

}  // namespace metroplex::nn

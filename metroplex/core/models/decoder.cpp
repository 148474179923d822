#include "models/decoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "config/config.h"
#include "config/experts.h"
#include "nn/autograd_node.h"
#include "comm/collectives.h"
#include "models/block.h"
#include "models/multi_token.h"
#include "nn/value.h"
#include "nn/wide.h"

namespace metroplex::models {
namespace {

std::shared_ptr<nn::Param> vocabulary_param(const char* name, topology::Role role, const ModelContext& context) {
  return nn::make_vocabulary_param({name, context.vocab_size, context.model.hidden_size, role},
                                   vocabulary_shard(context), context);
}

std::shared_ptr<nn::Param> make_word_embeddings(const ModelContext& context) {
  const auto word_embeddings =
      vocabulary_param("embedding.word_embeddings.weight", topology::Role::embedding, context);
  // The embedding, the prediction layers and the head may be in different stages.
  if (context.model.tied() || context.model.mtp_num_layers > 0)
    word_embeddings->placement.shared = word_embeddings->name;
  return word_embeddings;
}

// Saves a copy of the result, because the loss overwrites the result with its gradient.
at::Tensor cap_logits(const at::Tensor& x, double cap, const nn::SavePolicy& saving) {
  nn::SoftCap out;
  {
    const at::NoGradGuard no_grad;
    out = nn::apply_softcap(x, cap);
  }
  if (!at::GradMode::is_enabled()) return out.capped;
  return nn::attach(out.capped, {x}, [saved_share = saving.keep(out.share)](const at::Tensor& dy) -> nn::Gradients {
    const at::NoGradGuard no_grad;
    return {nn::softcap_gradient(dy, saved_share.get())};
  });
}

}  // namespace

nn::VocabularyShard vocabulary_shard(const ModelContext& context) {
  const int64_t padded =
      config::padded_vocab_size(context.vocab_size, context.model.make_vocab_size_divisible_by, context.tp.size());
  return nn::make_vocabulary_shard(context.vocab_size, padded, context.tp.size(), context.tp.index());
}

at::Tensor make_position_ids(const nn::Microbatch& batch) {
  if (batch.position_ids.defined()) return batch.position_ids;
  const nn::Positions rows = nn::sequence_positions(batch);
  if (rows.rows.defined()) return rows.rows.expand(batch.tokens.sizes());
  return at::arange(rows.first, rows.first + batch.tokens.size(1), batch.tokens.options())
      .expand(batch.tokens.sizes());
}

EmbeddingSegment::EmbeddingSegment(const ModelContext& context, std::shared_ptr<nn::Param> word_embeddings,
                                   int64_t site)
    : sp_(context.sp),
      fp32_residual_(context.fp32_residual_connection),
      scale_(context.model.embedding_multiplier *
             (context.model.scale_embeddings ? std::sqrt(static_cast<double>(context.model.hidden_size)) : 1)),
      word_embeddings_(std::move(word_embeddings), vocabulary_shard(context), context),
      dropout_{context.seed, site, nn::RandomSite::embedding, context.model.hidden_dropout, context.target} {
  const config::Model& model = context.model;
  if (model.position_embedding_type == config::PositionEmbedding::learned_absolute) {
    positions_.emplace("embedding.position_embeddings", model.max_position_embeddings, model.hidden_size,
                       topology::Role::weight, context);  // role weight: Muon treats it as a matrix, as in Megatron
  }
}

nn::Values EmbeddingSegment::forward(const nn::Values&, nn::SegmentContext& context) {
  const nn::Microbatch& batch = context.batch;
  MPX_CHECK(batch.tokens.size(1) % sp_.size() == 0, "models", "with sequence parallelism the sequence length ",
            batch.tokens.size(1), " must be a multiple of the tensor parallel size ", sp_.size());
  const at::Tensor positions = positions_ ? make_position_ids(batch) : at::Tensor();
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = word_embeddings_.apply(batch.tokens);
    if (scale_ != 1) out.mul_(scale_);
    if (positions_) positions_->add_to(out, positions);
    if (fp32_residual_) out = nn::to_wide(out);
  }
  out = nn::attach(out, {}, [this, tokens = batch.tokens, positions](const at::Tensor& dout) -> nn::Gradients {
    const at::NoGradGuard no_grad;
    word_embeddings_.add_gradient(scale_ != 1 ? dout * scale_ : dout, tokens);
    if (positions_) positions_->add_gradient(dout, positions);
    return {};
  });
  if (!dropout_.active(batch)) return {nn::kHiddenStates, out};
  return {nn::kHiddenStates, nn::PendingSum{out, {}, {dropout_, nullptr, nn::sequence_offset(out, sp_)}}};
}

void EmbeddingSegment::collect_params(std::vector<nn::Param*>& params) {
  params.push_back(&word_embeddings_.weight());
  if (positions_) params.push_back(&positions_->weight());
}

HeadSegment::HeadSegment(const ModelContext& context, std::shared_ptr<nn::Param> weight, bool final_norm)
    : defers_weights_(context.head_defers_weights),
      tp_(context.tp),
      scaling_(context.model.logits_scaling),
      softcap_(context.model.final_logit_softcapping),
      loss_{context.tp, vocabulary_shard(context), context.vocab_size, context.label_smoothing, context.target},
      saving_(context.saving),
      output_(std::move(weight), context) {
  if (final_norm) norm_.emplace(norm_spec("decoder.final_layernorm", context.model, context), context);
  if (context.loss_chunk_tokens == 0) return;
  chunks_.emplace(output_.weight(), loss_, context);
  chunks_->tokens = context.loss_chunk_tokens;
  chunks_->divisor = scaling_, chunks_->softcap = softcap_;
}

nn::Input HeadSegment::normalize_input(const at::Tensor& x) { return norm_ ? nn::normalize(*norm_, x, saving_) : x; }

at::Tensor HeadSegment::compute_logits(const at::Tensor& x) {
  at::Tensor logits = output_.forward(normalize_input(x));
  if (scaling_ != 1) logits = at::div(logits, scaling_);
  return softcap_ > 0 ? cap_logits(logits, softcap_, saving_) : logits;
}

at::Tensor HeadSegment::compute_losses(const at::Tensor& x, const at::Tensor& labels) {
  if (chunks_) return chunks_->forward(normalize_input(x), labels.t().contiguous());
  const at::Tensor logits = compute_logits(x);
  return nn::vocab_parallel_cross_entropy(logits, labels.t().contiguous(), loss_);
}

nn::Values HeadSegment::forward(const nn::Values& in, nn::SegmentContext& context) {
  const nn::Microbatch& batch = context.batch;
  const at::Tensor& x_sbh = in.tensor(nn::kHiddenStates);
  if (!batch.labels.defined()) {
    const at::NoGradGuard no_grad;
    return {nn::kLogits, comm::all_gather(compute_logits(x_sbh), -1, tp_).narrow(-1, 0, loss_.vocab_size)};
  }
  const at::Tensor losses = compute_losses(x_sbh, batch.labels);
  const at::Tensor mask = batch.loss_mask.defined() ? batch.loss_mask.t()
                                                    : at::ones(losses.sizes(), losses.options().requires_grad(false));
  return {nn::kLoss, nn::masked_sum(losses, mask)};
}

void HeadSegment::collect_params(std::vector<nn::Param*>& params) {
  if (norm_) norm_->collect_params(params);
  output_.collect_params(params);
}

nn::Blocks build_decoder(const ModelContext& context, const StageSpec& stage, BeforeHead before_head) {
  MPX_CHECK(stage.first_layer >= 0 && stage.first_layer + stage.num_layers <= context.model.num_layers, "models",
            "layers ", stage.first_layer, " to ", stage.first_layer + stage.num_layers, " of a model of ",
            context.model.num_layers, " layers");
  nn::Blocks blocks;
  const auto add = [&](std::unique_ptr<nn::Segment> segment) {
    blocks.push_back({segment->name(), false, {}});
    blocks.back().segments.push_back(std::move(segment));
  };
  const bool has_prediction = stage.has_multi_token && context.model.mtp_num_layers > 0;
  std::shared_ptr<nn::Param> word_embeddings, output;
  if (stage.has_embedding || has_prediction || (stage.has_loss && context.model.tied()))
    word_embeddings = make_word_embeddings(context);
  if (stage.has_embedding) add(std::make_unique<EmbeddingSegment>(context, word_embeddings, 0));
  const std::shared_ptr<nn::RopeTable> rope = make_rope(context), scaling = make_query_scaling(context);
  const std::vector<bool> windows = config::window_layers(context.model);
  const std::vector<bool> rotated = config::rope_layers(context.model);
  const auto local = context.model.rotary_base_local > 0 ? make_rope(context, true) : rope;
  for (int64_t layer = stage.first_layer; layer < stage.first_layer + stage.num_layers; ++layer) {
    blocks.push_back({"decoder.layers." + std::to_string(layer), true, {}});
    const auto number = static_cast<size_t>(layer);
    add_layer_segments(blocks.back(), {blocks.back().name, layer}, context,
                       !rotated[number]  ? scaling
                       : windows[number] ? local
                                         : rope);
  }
  const auto add_all = [&](nn::Blocks more) { std::move(more.begin(), more.end(), std::back_inserter(blocks)); };
  if (stage.has_loss)
    output = context.model.tied() ? word_embeddings
                                  : vocabulary_param("output_layer.weight", topology::Role::output, context);
  if (has_prediction) add_all(multi_token_layers(context, {word_embeddings, output, windows.back() ? local : rope}));
  if (!stage.has_loss) return blocks;
  if (!stage.has_multi_token) add_all(multi_token_losses(context, output));
  if (before_head != nullptr) blocks.push_back(before_head(context));
  add(std::make_unique<HeadSegment>(context, output, before_head == nullptr && context.model.mtp_num_layers == 0));
  return blocks;
}

}  // namespace metroplex::models

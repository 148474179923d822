#include "models/multi_token.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "models/block.h"
#include "nn/head_exchange.h"
#include "nn/value.h"

namespace metroplex::models {
namespace {

std::string layer_name(int64_t depth) { return "mtp.layers." + std::to_string(depth - 1); }

nn::LinearSpec projection_spec(const std::string& name, const config::Model& model) {
  return nn::linear_spec(name + ".eh_proj", 2 * model.hidden_size, model.hidden_size, false);
}

// Shifts x [b, s] to the left and fills with zeros.
at::Tensor shift_left(const at::Tensor& x, int64_t by) {
  return at::cat({x.narrow(1, by, x.size(1) - by), at::zeros({x.size(0), by}, x.options())}, 1);
}

at::Tensor get_loss_mask(const nn::Microbatch& batch) {
  if (batch.loss_mask.defined()) return batch.loss_mask;
  return at::ones(batch.labels.sizes(), batch.labels.options().dtype(at::kFloat));
}

// x [b, s] of this rank's rows for the whole sequence.
at::Tensor gather_tokens(const at::Tensor& x, const nn::Microbatch& batch, const comm::Group& cp) {
  return cp.size() == 1 ? x : nn::gather_sequence(x.t().contiguous(), batch, cp).t();
}
at::Tensor own_tokens(const at::Tensor& whole, const nn::Microbatch& batch, const comm::Group& cp) {
  return cp.size() == 1 ? whole : nn::select_rows(whole, 1, batch.sequence.rows);
}

double loss_factor(const config::Model& model) {
  return model.mtp_loss_scaling_factor / static_cast<double>(model.mtp_num_layers);
}

}  // namespace

BatchAhead::BatchAhead(const nn::Microbatch& now, int64_t by, const comm::Group& cp) : batch(now) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = gather_tokens(now.tokens, now, cp);
  MPX_CHECK(by < tokens.size(1), "models", "model.mtp_num_layers = ", by, " or more need sequences longer than ",
            tokens.size(1), "; use fewer, or longer sequences");
  mask = gather_tokens(get_loss_mask(now), now, cp);
  mask_ahead = shift_left(mask, by);
  if (now.documents.ids.defined())  // no prediction across documents
    mask_ahead = mask_ahead * shift_left(now.documents.ids, by).eq(now.documents.ids);
  batch.tokens = own_tokens(shift_left(tokens, by), now, cp);
  batch.labels = own_tokens(shift_left(gather_tokens(now.labels, now, cp), by), now, cp);
  batch.loss_mask = own_tokens(mask_ahead, now, cp);
}

at::Tensor BatchAhead::loss_weight() const {
  const at::NoGradGuard no_grad;
  const at::Tensor num_left = mask_ahead.sum(at::kDouble);
  const at::Tensor none = num_left.eq(0);  // the sum is 0 then; avoids a division by zero
  return mask.sum(at::kDouble) / (num_left + none);
}

bool has_predictions(const nn::Microbatch& batch) { return batch.training && batch.labels.defined(); }
std::string predicted_name(int64_t depth) { return "multi_token_hidden_states_" + std::to_string(depth); }

MultiTokenLoss::MultiTokenLoss(const ModelContext& context, int64_t depth, std::shared_ptr<nn::Param> output)
    : depth_(depth), factor_(loss_factor(context.model)), head_(context, std::move(output), false) {}

void MultiTokenLoss::add(const at::Tensor& predicted, const BatchAhead& ahead, nn::SegmentContext& context) {
  nn::SegmentContext inner{ahead.batch, context.is_recompute, {}};
  const at::Tensor loss = head_.forward({nn::kHiddenStates, predicted}, inner).tensor(nn::kLoss);
  const at::Tensor weight = (ahead.loss_weight() * factor_).to(loss.scalar_type());
  context.terms.push_back({"mtp_" + std::to_string(depth_) + " loss", loss * weight});
}

MultiTokenLossSegment::MultiTokenLossSegment(const ModelContext& context, int64_t depth,
                                             std::shared_ptr<nn::Param> output)
    : name_("mtp_" + std::to_string(depth) + "_loss"),
      input_name_(predicted_name(depth)),
      depth_(depth),
      cp_(context.cp),
      loss_(context, depth, std::move(output)) {}

nn::Values MultiTokenLossSegment::forward(const nn::Values& in, nn::SegmentContext& context) {
  nn::Values out;
  for (const auto& [name, value] : in) {
    if (name == input_name_) loss_.add(value.tensor(), BatchAhead(context.batch, depth_, cp_), context);
    else out.add(name, value.tensor());
  }
  return out;
}

MultiTokenSegment::MultiTokenSegment(const ModelContext& context, int64_t depth, const SharedModules& shared)
    : name_(layer_name(depth)),
      depth_(depth),
      layers_(context.model.mtp_num_layers),
      fp32_residual_(context.fp32_residual_connection),
      cp_(context.cp),
      saving_(context.saving),
      embedding_(context, shared.word_embeddings, context.model.num_layers + depth - 1),
      embedding_norm_(norm_spec(name_ + ".enorm", context.model, context), context),
      hidden_norm_(norm_spec(name_ + ".hnorm", context.model, context), context),
      final_norm_(norm_spec(name_ + ".final_layernorm", context.model, context), context),
      projection_(projection_spec(name_, context.model), nn::LinearSplit::none, context),
      layer_{name_ + ".transformer_layer", false, {}} {
  if (shared.output) loss_.emplace(context, depth, shared.output);
  if (depth == 1) model_norm_.emplace(norm_spec("decoder.final_layernorm", context.model, context), context);
  add_layer_segments(layer_, {layer_.name, context.model.num_layers + depth - 1}, context, shared.rope);
}

// Returns the projection, [s (/tp), b, h].
at::Tensor MultiTokenSegment::project_inputs(const at::Tensor& before, const nn::Microbatch& ahead,
                                             nn::SegmentContext& context) {
  nn::SegmentContext inner{ahead, context.is_recompute, {}};
  nn::Value word_embeddings = embedding_.forward({}, inner).at(nn::kHiddenStates);
  word_embeddings.compute(ahead);
  const at::Tensor both = at::cat({nn::normalize(embedding_norm_, word_embeddings.tensor(), saving_).x,
                                   nn::normalize(hidden_norm_, before, saving_).x},
                                  2);
  const at::Tensor out = projection_.forward(both, ahead);
  return fp32_residual_ ? out.to(at::kFloat) : out;
}

// Returns the values for the next layer and the head. For a head in another stage `before` is copied: backward needs
// it after the send has freed the sent tensor.
nn::Values MultiTokenSegment::pass_values(const nn::Values& in, const at::Tensor& model,
                                          const at::Tensor& before) const {
  if (loss_) return {nn::kHiddenStates, model};
  nn::Values out;
  for (const auto& [name, value] : in) {
    const at::Tensor& x = name == nn::kHiddenStates ? model : value.tensor();
    out.add(name, x.is_same(before) ? x.clone() : x);
  }
  return out;
}

nn::Values MultiTokenSegment::forward(const nn::Values& in, nn::SegmentContext& context) {
  const nn::Microbatch& batch = context.batch;
  at::Tensor model = in.tensor(nn::kHiddenStates);
  if (model_norm_) model = nn::normalize(*model_norm_, model, saving_).x;
  if (!has_predictions(batch)) return {nn::kHiddenStates, model};
  const BatchAhead ahead(batch, depth_, cp_);
  const at::Tensor before = model_norm_ ? model : in.tensor(predicted_name(depth_ - 1));
  nn::Values out = pass_values(in, model, before);
  nn::Values x(nn::kHiddenStates, project_inputs(before, ahead.batch, context));
  for (const auto& segment : layer_.segments) x = segment->forward(x, context);
  nn::Value last = x.at(nn::kHiddenStates);
  last.compute(batch);
  const at::Tensor predicted = nn::normalize(final_norm_, last.tensor(), saving_).x;
  if (loss_) loss_->add(predicted, ahead, context);
  if (!loss_ || depth_ < layers_) out.add(predicted_name(depth_), predicted);
  return out;
}

void MultiTokenSegment::collect_params(std::vector<nn::Param*>& params) {
  if (model_norm_) model_norm_->collect_params(params);
  embedding_.collect_params(params);
  embedding_norm_.collect_params(params);
  hidden_norm_.collect_params(params);
  projection_.collect_params(params);
  for (const auto& segment : layer_.segments) segment->collect_params(params);
  final_norm_.collect_params(params);
  if (loss_) loss_->collect_params(params);
}

void MultiTokenSegment::collect_buffers(std::vector<nn::Buffer*>& buffers) {
  for (const auto& segment : layer_.segments) segment->collect_buffers(buffers);
}

void MultiTokenSegment::collect_step_counts(std::vector<at::Tensor>& counts) {
  for (const auto& segment : layer_.segments) segment->collect_step_counts(counts);
}

nn::SegmentTraits MultiTokenSegment::traits() const {
  nn::SegmentTraits all;
  all.defers_weights = !loss_.has_value();
  for (const auto& segment : layer_.segments) {
    const nn::SegmentTraits one = segment->traits();
    all.needs_host = all.needs_host || one.needs_host;
    all.static_shapes = all.static_shapes && one.static_shapes;
  }
  return all;
}

nn::Blocks multi_token_layers(const ModelContext& context, const SharedModules& shared) {
  nn::Blocks blocks;
  for (int64_t depth = 1; depth <= context.model.mtp_num_layers; ++depth) {
    blocks.push_back({layer_name(depth), false, {}});
    blocks.back().segments.push_back(std::make_unique<MultiTokenSegment>(context, depth, shared));
  }
  return blocks;
}

nn::Blocks multi_token_losses(const ModelContext& context, const std::shared_ptr<nn::Param>& output) {
  nn::Blocks blocks;
  for (int64_t depth = 1; depth <= context.model.mtp_num_layers; ++depth) {
    auto segment = std::make_unique<MultiTokenLossSegment>(context, depth, output);
    blocks.push_back({segment->name(), false, {}});
    blocks.back().segments.push_back(std::move(segment));
  }
  return blocks;
}

}  // namespace metroplex::models

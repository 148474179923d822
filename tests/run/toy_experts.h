// A small hand-written model with all features of a mixture of experts. Blocks have four segments with integers
// between them and between stages, a loss term, and a parameter that is never read. Parameters belong to three
// families: dense, experts sharded in two dims over ep and etp, and a router in another number format. Both grids
// have buffers. Every rank has its own tokens; experts process those of all ranks of etp and ep.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "nn/param_init.h"
#include "nn/differentiable.h"
#include "step/assemble.h"

namespace metroplex::test {

constexpr int64_t kExperts = 4, kExpertWidth = 6;

// Returns an autograd leaf; its gradient is the parameter's.
inline at::Tensor leaf(nn::Param& param) {
  at::Tensor x = param.data.detach();
  if (!at::GradMode::is_enabled()) return x;
  x.requires_grad_();
  x.register_hook([&param](const at::Tensor& gradient) {
    param.accumulate([&](at::Tensor& main_grad) { main_grad.add_(gradient); });
    return gradient;
  });
  return x;
}

struct ToyContext {
  nn::LayerContext layer;
  comm::Group experts;  // etp and ep
  comm::Group edp, dp_cp;
  topology::Coordinates at;
  int ep = 1, etp = 1;
  int64_t hidden = 0;
  at::ScalarType router_dtype = at::kFloat;
};

inline nn::Buffer make_buffer(const std::string& name, std::vector<int64_t> shape, topology::Placement placement) {
  nn::Buffer buffer;
  buffer.name = name;
  buffer.global_shape = std::move(shape);
  buffer.placement = std::move(placement);
  buffer.local_shape = topology::local_shape(buffer.global_shape, buffer.placement);
  buffer.data = at::zeros(buffer.local_shape, at::kDouble);
  buffer.pending = at::zeros_like(buffer.data);
  return buffer;
}

class ToySegment : public nn::Segment {
 public:
  explicit ToySegment(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>& params) override {
    params.insert(params.end(), params_.begin(), params_.end());
  }
  void collect_buffers(std::vector<nn::Buffer*>& buffers) override {
    buffers.insert(buffers.end(), buffers_.begin(), buffers_.end());
  }

 protected:
  std::string name_;
  std::vector<nn::Param*> params_;
  std::vector<nn::Buffer*> buffers_;
};

constexpr const char* kExpertIndex = "expert_index";  // [tokens] int64: the preferred expert of the last router

class ToyEmbedding final : public ToySegment {
 public:
  ToyEmbedding(const ToyContext& context, int64_t vocab) : ToySegment("embedding"), sp_(context.layer.sp) {
    topology::Placement placement;
    placement.partial = context.layer.sp_axes;
    placement.role = topology::Role::embedding;
    table_ = nn::make_param({"embedding.weight", {vocab, context.hidden}, placement}, context.layer);
    params_ = {&table_};
  }
  nn::Values forward(const nn::Values&, nn::SegmentContext& context) override {
    const at::Tensor tokens = comm::select_shard(context.batch.tokens.t().contiguous(), 0, sp_);
    nn::Values out(nn::kHiddenStates, leaf(table_).index({tokens}).mul(20.0));
    out.add(kExpertIndex, tokens.reshape({-1}).remainder(kExperts));
    return out;
  }

 private:
  comm::Group sp_;
  nn::Param table_;
};

// A layer is x + scale[i] * (expert mixture of h), h = tanh(x W), i the preferred expert of a token: four segments.
// Each border passes several tensors, including integers.

// hidden_states, expert_index (of the layer before) -> the same and h. Lists a parameter that it never reads.
class ToyDense final : public ToySegment {
 public:
  ToyDense(const ToyContext& context, const std::string& layer)
      : ToySegment(layer + ".dense"), hidden_(context.hidden) {
    topology::Placement placement;
    placement.partial = context.layer.sp_axes;
    weight_ = nn::make_param({name_ + ".weight", {context.hidden, context.hidden}, placement}, context.layer);
    unused_ = nn::make_param({name_ + ".unused", {context.hidden, 3}, placement}, context.layer);
    params_ = {&unused_, &weight_};
  }
  nn::Values forward(const nn::Values& in, nn::SegmentContext&) override {
    const at::Tensor x = in.tensor(nn::kHiddenStates);
    nn::Values out = in;
    out.add("h", at::tanh(at::mm(x.reshape({-1, hidden_}), leaf(weight_)).mul(10.0)));
    return out;
  }

 private:
  int64_t hidden_;
  nn::Param weight_, unused_;
};

// Adds shares [tokens, experts] and a new expert_index; reports the loss term "balance", the sum of squared shares.
class ToyRouter final : public ToySegment {
 public:
  ToyRouter(const ToyContext& context, const std::string& layer)
      : ToySegment(layer + ".router"), sp_(context.layer.sp), dp_cp_(context.dp_cp) {
    topology::Placement placement;
    placement.partial = context.layer.sp_axes;
    placement.role = topology::Role::router;
    weight_ = nn::make_param(
        {name_ + ".weight", {context.hidden, kExperts}, placement, nn::Init::normal, context.router_dtype},
        context.layer);
    params_ = {&weight_};
    // Equal on all ranks, because it depends on all tokens.
    bias_ = make_buffer(name_ + ".expert_bias", {kExperts}, {});
    bias_.apply = [this](nn::Buffer& buffer) {
      comm::all_reduce(buffer.pending, sp_);
      comm::all_reduce(buffer.pending, dp_cp_);
      buffer.data.add_(buffer.pending.mean() - buffer.pending, 0.01);
    };
    buffers_ = {&bias_};
  }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    // at::one_hot would read its input on the host.
    const at::Tensor before = in.tensor(kExpertIndex).unsqueeze(-1).eq(at::arange(kExperts)).to(at::kDouble);
    const at::Tensor logits = at::mm(in.tensor("h"), leaf(weight_).to(at::kDouble)).mul(10.0);
    const at::Tensor shares = at::softmax(logits + bias_.data + 0.1 * before, -1);
    if (context.batch.training && !context.is_recompute) bias_.pending.add_(shares.detach().sum(0));
    context.terms.push_back({"balance", reduce_from_group(shares.square().sum(), sp_)});
    nn::Values out(nn::kHiddenStates, in.tensor(nn::kHiddenStates));
    out.add("h", in.tensor("h")).add("shares", shares).add(kExpertIndex, shares.detach().argmax(-1));
    return out;
  }

 private:
  comm::Group sp_, dp_cp_;
  nn::Param weight_;
  nn::Buffer bias_;
};

// h and shares of all ranks of etp and ep -> the mixture for this rank's tokens. One parameter, sharded in two dims.
class ToyExpertStack final : public ToySegment {
 public:
  ToyExpertStack(const ToyContext& context, const std::string& layer)
      : ToySegment(layer + ".experts"),
        group_(context.experts),
        edp_(context.edp),
        first_(context.at.ep * (kExperts / context.ep)) {
    const topology::DimShard over_ep =
        topology::even_shard(0, topology::Axis::ep, kExperts, context.ep, context.at.ep);
    topology::Placement placement;
    placement.grid = topology::Grid::expert;
    placement.cuts = {over_ep,
                      topology::even_shard(1, topology::Axis::etp, kExpertWidth, context.etp, context.at.etp)};
    placement.regions = topology::expert_regions(name_, kExperts, "weight");
    weight_ = nn::make_param({name_ + ".weight", {kExperts, kExpertWidth, context.hidden}, placement}, context.layer);
    params_ = {&weight_};
    // On the ranks of its expert.
    topology::Placement where;
    where.grid = topology::Grid::expert;
    where.cuts = {over_ep};
    load_ = make_buffer(name_ + ".load", {kExperts}, where);
    load_.apply = [this](nn::Buffer& buffer) {
      comm::all_reduce(buffer.pending, edp_);
      buffer.data.add_(buffer.pending);
    };
    buffers_ = {&load_};
  }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    const at::Tensor tokens = gather_from_sequence(in.tensor("h"), 0, group_),
                     shares = gather_from_sequence(in.tensor("shares"), 0, group_),
                     preferred = comm::all_gather(in.tensor(kExpertIndex), 0, group_), experts = leaf(weight_);
    const int64_t count = experts.size(0);
    at::Tensor sum = at::zeros_like(tokens);
    for (int64_t e = 0; e < count; ++e) {
      const at::Tensor w = experts.select(0, e);
      const at::Tensor share = shares.select(1, first_ + e) + 0.5 * preferred.eq(first_ + e);
      sum = sum + share.unsqueeze(1) * at::mm(at::tanh(at::mm(tokens, w.t()).mul(10.0)), w);
    }
    if (context.batch.training && !context.is_recompute)
      load_.pending.add_(shares.detach().narrow(1, first_, count).sum(0));
    nn::Values out(nn::kHiddenStates, in.tensor(nn::kHiddenStates));
    out.add(kExpertIndex, in.tensor(kExpertIndex));
    out.add("mixture", reduce_scatter_to_group(sum, 0, group_));
    return out;
  }

 private:
  comm::Group group_, edp_;
  int64_t first_;
  nn::Param weight_;
  nn::Buffer load_;
};

class ToyCombine final : public ToySegment {
 public:
  ToyCombine(const ToyContext& context, const std::string& layer) : ToySegment(layer + ".combine") {
    topology::Placement placement;
    placement.partial = context.layer.sp_axes;
    placement.role = topology::Role::norm;
    scale_ = nn::make_param({name_ + ".scale", {kExperts}, placement, nn::Init::ones}, context.layer);
    params_ = {&scale_};
  }
  nn::Values forward(const nn::Values& in, nn::SegmentContext&) override {
    const at::Tensor x = in.tensor(nn::kHiddenStates), index = in.tensor(kExpertIndex);
    const at::Tensor scaled = in.tensor("mixture") * leaf(scale_).index({index}).unsqueeze(1);
    nn::Values out(nn::kHiddenStates, x + scaled.view(x.sizes()));
    out.add(kExpertIndex, index);
    return out;
  }

 private:
  nn::Param scale_;
};

// Sum over the microbatch of mask times (x v)^2; every tensor-parallel rank has the full gradient of the head.
class ToyHead final : public ToySegment {
 public:
  explicit ToyHead(const ToyContext& context) : ToySegment("head"), sp_(context.layer.sp) {
    topology::Placement placement;
    placement.role = topology::Role::bias;
    weight_ = nn::make_param({"head.weight", {context.hidden}, placement}, context.layer);
    params_ = {&weight_};
  }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    const at::Tensor whole = gather_from_group(in.tensor(nn::kHiddenStates), 0, sp_);
    const at::Tensor y = at::matmul(whole, leaf(weight_)).mul(10.0).sub(0.5);
    return {nn::kLoss, (y.square() * context.batch.loss_mask.t()).sum()};
  }

 private:
  comm::Group sp_;
  nn::Param weight_;
};

template <class... Segments>
nn::Block toy_block(std::string name, bool is_layer, std::unique_ptr<Segments>... segments) {
  nn::Block block{std::move(name), is_layer, {}};
  (block.segments.push_back(std::move(segments)), ...);
  return block;
}

// Values at a stage border in addition to hidden states: the preferred expert of each of this rank's tokens.
inline std::vector<pipeline::BorderValue> toy_border(const config::Config& config) {
  const int64_t regions = config.parallel.sequence_parallel ? config.parallel.tp() : 1;
  return {{kExpertIndex, {config.train.seq_length / regions * config.train.micro_batch_size}, at::kLong}};
}

inline step::StageBuilder toy_experts(const comm::World& world, at::ScalarType router_dtype) {
  using topology::Axis;
  return [&world, router_dtype](const models::ModelContext& model, const models::StageSpec& slice) {
    ToyContext context;
    context.layer = model;
    context.layer.init_std = 0.05;
    context.experts = world.make_group(
        {"etp-ep", comm::Purpose::experts, world.grid().group_ranks(world.rank(), {Axis::etp, Axis::ep})});
    context.edp = world.groups().edp;
    context.dp_cp = world.groups().dp_cp;
    context.at = world.coordinates();
    context.ep = world.grid().size(Axis::ep);
    context.etp = world.grid().size(Axis::etp);
    context.hidden = model.model.hidden_size;
    context.router_dtype = router_dtype;
    nn::Blocks blocks;
    if (slice.has_embedding)
      blocks.push_back(toy_block("embedding", false, std::make_unique<ToyEmbedding>(context, model.vocab_size)));
    for (int64_t i = slice.first_layer; i < slice.first_layer + slice.num_layers; ++i) {
      const std::string layer = base::concat("layers.", i);
      blocks.push_back(toy_block(
          layer, true, std::make_unique<ToyDense>(context, layer), std::make_unique<ToyRouter>(context, layer),
          std::make_unique<ToyExpertStack>(context, layer), std::make_unique<ToyCombine>(context, layer)));
    }
    if (slice.has_loss) blocks.push_back(toy_block("head", false, std::make_unique<ToyHead>(context)));
    return blocks;
  };
}

}  // namespace metroplex::test

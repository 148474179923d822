// A small hand-made model with parameters of three families: dense ones, experts cut over ep and etp of the folded
// grid, and a router in a number format of its own; and with state without gradient of both grids. Every rank has its
// own tokens; experts see those of all ranks of etp and ep, by an all-gather and a reduce-scatter.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/world.h"
#include "nn/param_init.h"
#include "support/differentiable.h"
#include "train/assemble.h"

namespace metroplex::test {

constexpr int64_t kExperts = 4, kExpertWidth = 6;

// As an autograd leaf, whose gradient is the parameter's.
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

class ToyEmbedding final : public nn::Segment {
 public:
  ToyEmbedding(const ToyContext& context, int64_t vocab) : sp_(context.layer.sp) {
    topology::Placement placement;
    placement.partial = context.layer.sp_axes;
    placement.role = topology::Role::embedding;
    table_ = nn::make_param({"embedding.weight", {vocab, context.hidden}, placement}, context.layer);
  }
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>& params) override { params.push_back(&table_); }
  at::Tensor forward(const at::Tensor&, const nn::Microbatch& batch) override {
    return leaf(table_).index({comm::own_slice(batch.tokens.t().contiguous(), 0, sp_)}).mul(20.0);
  }

 private:
  std::string name_ = "embedding";
  comm::Group sp_;
  nn::Param table_;
};

// x + (expert mixture of tanh(x W)).
class ToyLayer final : public nn::Segment {
 public:
  ToyLayer(const ToyContext& context, int64_t number) : c_(context), name_(base::concat("layers.", number)) {
    topology::Placement dense, router;
    dense.partial = router.partial = c_.layer.sp_axes;
    router.role = topology::Role::router;
    dense_ = nn::make_param({name_ + ".dense.weight", {c_.hidden, c_.hidden}, dense}, c_.layer);
    router_ = nn::make_param(
        {name_ + ".router.weight", {c_.hidden, kExperts}, router, nn::Init::normal, c_.router_dtype}, c_.layer);
    const topology::Cut over_ep = topology::even_cut(0, topology::Axis::ep, kExperts, c_.ep, c_.at.ep);
    topology::Placement experts;
    experts.grid = topology::Grid::expert;
    experts.cuts = {over_ep, topology::even_cut(1, topology::Axis::etp, kExpertWidth, c_.etp, c_.at.etp)};
    experts.parts = topology::expert_parts(name_ + ".experts", kExperts, "weight");
    experts_ = nn::make_param({name_ + ".experts.weight", {kExperts, kExpertWidth, c_.hidden}, experts}, c_.layer);
    make_buffers(over_ep);
  }
  const std::string& name() const override { return name_; }
  bool is_block() const override { return true; }
  void collect_params(std::vector<nn::Param*>& params) override {
    params.insert(params.end(), {&dense_, &router_, &experts_});
  }
  void collect_buffers(std::vector<nn::Buffer*>& buffers) override {
    buffers.insert(buffers.end(), {&bias_, &load_});
  }

  at::Tensor forward(const at::Tensor& x_sbh, const nn::Microbatch& batch) override {
    const at::Tensor x = x_sbh.reshape({-1, c_.hidden});
    const at::Tensor h = at::tanh(at::mm(x, leaf(dense_)).mul(10.0));
    const at::Tensor shares = at::softmax(at::mm(h, leaf(router_).to(at::kDouble)).mul(10.0).add(bias_.data), -1);
    const at::Tensor tokens = comm::gather_from_sequence(h, 0, c_.experts),
                     weights = comm::gather_from_sequence(shares, 0, c_.experts);
    const at::Tensor experts = leaf(experts_);
    const int64_t count = experts.size(0), first = c_.at.ep * count;
    at::Tensor sum = at::zeros_like(tokens);
    for (int64_t e = 0; e < count; ++e) {
      const at::Tensor w = experts.select(0, e);
      sum = sum + weights.select(1, first + e).unsqueeze(1) * at::mm(at::tanh(at::mm(tokens, w.t()).mul(10.0)), w);
    }
    if (batch.training) gather_state(shares.detach(), weights.detach().narrow(1, first, count));
    return (x + comm::reduce_scatter_to_group(sum, 0, c_.experts)).view(x_sbh.sizes());
  }

 private:
  // The bias is equal everywhere and follows from all tokens; the load lies where its expert does.
  void make_buffers(const topology::Cut& over_ep) {
    bias_ = make_buffer(name_ + ".router.expert_bias", {kExperts}, {});
    bias_.apply = [c = &c_](nn::Buffer& buffer) {
      comm::all_reduce(buffer.pending, c->layer.sp);
      comm::all_reduce(buffer.pending, c->dp_cp);
      buffer.data.add_(buffer.pending.mean() - buffer.pending, 0.01);
    };
    topology::Placement placement;
    placement.grid = topology::Grid::expert;
    placement.cuts = {over_ep};
    load_ = make_buffer(name_ + ".experts.load", {kExperts}, placement);
    load_.apply = [c = &c_](nn::Buffer& buffer) {
      comm::all_reduce(buffer.pending, c->edp);
      buffer.data.add_(buffer.pending);
    };
  }
  void gather_state(const at::Tensor& own, const at::Tensor& of_all) {
    bias_.pending.add_(own.sum(0));
    load_.pending.add_(of_all.sum(0));
  }

  ToyContext c_;
  std::string name_;
  nn::Param dense_, router_, experts_;
  nn::Buffer bias_, load_;
};

// Sum over the microbatch of mask times (x v)^2; the head's gradient is whole on every tensor-parallel rank.
class ToyHead final : public nn::Segment {
 public:
  explicit ToyHead(const ToyContext& context) : sp_(context.layer.sp) {
    topology::Placement placement;
    placement.role = topology::Role::bias;
    weight_ = nn::make_param({"head.weight", {context.hidden}, placement}, context.layer);
  }
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>& params) override { params.push_back(&weight_); }
  at::Tensor forward(const at::Tensor& x_sbh, const nn::Microbatch& batch) override {
    const at::Tensor whole = comm::gather_from_group(x_sbh, 0, sp_);
    const at::Tensor y = at::matmul(whole, leaf(weight_)).mul(10.0).sub(0.5);
    return (y.square() * batch.loss_mask.t()).sum();
  }

 private:
  std::string name_ = "head";
  comm::Group sp_;
  nn::Param weight_;
};

inline train::StageBuilder toy_experts(const comm::World& world, at::ScalarType router_dtype) {
  using topology::Axis;
  return [&world, router_dtype](const models::ModelContext& model, const models::StageSlice& slice) {
    ToyContext c;
    nn::set_tensor_parallel(c.layer, model.tp, model.sequence_parallel);
    c.layer.dtype = model.dtype;
    c.layer.device = model.device;
    c.layer.seed = model.seed;
    c.layer.init_std = 0.05;
    c.layer.num_layers = model.model.num_layers;
    c.layer.deferred = model.deferred_initialization;
    c.experts = world.make_group("etp-ep", world.grid().group_of(world.rank(), {Axis::etp, Axis::ep}));
    c.edp = world.groups().edp;
    c.dp_cp = world.groups().dp_cp;
    c.at = world.coordinates();
    c.ep = world.grid().size(Axis::ep);
    c.etp = world.grid().size(Axis::etp);
    c.hidden = model.model.hidden_size;
    c.router_dtype = router_dtype;
    pipeline::Segments segments;
    if (slice.has_embedding) segments.push_back(std::make_unique<ToyEmbedding>(c, model.vocab_size));
    for (int64_t i = 0; i < slice.num_layers; ++i)
      segments.push_back(std::make_unique<ToyLayer>(c, slice.first_layer + i));
    if (slice.has_loss) segments.push_back(std::make_unique<ToyHead>(c));
    return segments;
  };
}

}  // namespace metroplex::test

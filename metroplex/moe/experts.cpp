#include "moe/experts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <optional>
#include <utility>

#include "base/error.h"
#include "comm/autograd_node.h"
#include "config/experts.h"
#include "cuda/host_read.h"
#include "moe/expert_rows.h"
#include "moe/grouped_product.h"
#include "nn/activation.h"
#include "nn/matmul.h"
#include "nn/param_init.h"
#include "nn/wide.h"

namespace metroplex::moe {
namespace {

using topology::Axis;

struct Sizes {
  int64_t experts = 0, hidden = 0, width = 0;  // of the whole layer
  bool gated = false;
};

Sizes sizes_of(const config::Model& model) {
  return {model.num_moe_experts, model.hidden_size, config::expert_ffn_width(model), model.gated_linear_unit};
}

// The cuts of a stack of experts, over ep and where `cut_dim` is one over etp; of a gated one gate and up each.
std::vector<topology::Cut> stack_cuts(const Sizes& s, const ExpertContext& at, int cut_dim, bool gated) {
  std::vector<topology::Cut> cuts = {topology::even_cut(0, Axis::ep, s.experts, at.ep, at.ep_rank())};
  if (cut_dim < 0) return cuts;
  topology::Cut cut = topology::even_cut(cut_dim, Axis::etp, s.width, at.etp, at.etp_rank());
  if (gated) {
    const topology::RowRange gate = cut.ranges.front();
    cut.ranges.push_back({gate.size, s.width + gate.global, gate.size});
  }
  cuts.push_back(cut);
  return cuts;
}

}  // namespace

struct Experts::State {
  State(const std::string& name, const config::Model& model, const nn::LayerContext& layer, const ExpertContext& at)
      : sizes(sizes_of(model)),
        target(layer.target),
        saving(layer.saving),
        grouped(model.moe_grouped_gemm),
        scales_input(model.moe_apply_probs_on_input),
        first_of_etp(at.etp_rank() == 0),
        products(layer.target, sizes.experts / at.ep),
        rows(layer.target, nn::activation_kind(model.activation), sizes.gated),
        fc1(make(name, "linear_fc1.weight", {sizes.experts, inner(), sizes.hidden}, 1, nn::Init::normal, layer, at)),
        fc2(make(name, "linear_fc2.weight", {sizes.experts, sizes.hidden, sizes.width}, 2, nn::Init::scaled_normal,
                 layer, at)) {
    if (!model.add_bias_linear) return;
    bias1 = make(name, "linear_fc1.bias", {sizes.experts, inner()}, 1, nn::Init::zeros, layer, at);
    bias2 = make(name, "linear_fc2.bias", {sizes.experts, sizes.hidden}, -1, nn::Init::zeros, layer, at);
  }

  int64_t inner() const { return sizes.gated ? 2 * sizes.width : sizes.width; }

  nn::Param make(const std::string& name, const std::string& tensor, std::vector<int64_t> shape, int cut_dim,
                 nn::Init init, const nn::LayerContext& layer, const ExpertContext& at) const {
    topology::Placement placement;
    placement.grid = topology::Grid::expert;
    placement.cuts = stack_cuts(sizes, at, cut_dim, sizes.gated && cut_dim == 1);
    placement.role = init == nn::Init::zeros ? topology::Role::bias : topology::Role::weight;
    placement.parts = topology::expert_parts(name, sizes.experts, tensor);
    return nn::make_param({name + "." + tensor, std::move(shape), std::move(placement), init}, layer);
  }

  // Of a forward, for its backward too.
  struct Counts {
    at::Tensor device;
    std::vector<int64_t> host;  // where experts come one after the other
  };
  Counts counts_of(const ExpertRows& in) const;

  at::Tensor product(const at::Tensor& x, const nn::Param& weight, const Counts& counts) const;
  at::Tensor input_gradient(const at::Tensor& dy, const nn::Param& weight, const Counts& counts) const;
  void weight_gradient(nn::Param& weight, const at::Tensor& dy, const at::Tensor& x, const Counts& counts) const;
  void bias_gradient(nn::Param& bias, const at::Tensor& dy, const at::Tensor& probs, const Counts& counts) const {
    bias.accumulate([&](at::Tensor& main_grad) { rows.add_sums(main_grad, dy, probs, counts.device); });
  }

  static at::Tensor data(const std::optional<nn::Param>& bias) { return bias ? bias->data : at::Tensor(); }

  // The steps of a forward. Probabilities that multiply the input multiply nothing else: `probs` is undefined.
  struct Factors {
    at::Tensor input, probs;
  };
  at::Tensor input(const at::Tensor& x, const Factors& p, const Counts& counts) const {
    return scales_input ? rows.scale(x, p.input, counts.device) : x;
  }
  at::Tensor activation(const at::Tensor& x, const Factors& p, const Counts& counts) const {
    return rows.activation(x, data(bias1), p.probs, counts.device);
  }

  struct Kept {
    nn::Saved x, inner, activated;
    Factors factors;
    Counts counts;
  };
  at::Tensor forward(const ExpertRows& in);
  Kept keep(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& activated, const Factors& factors,
            const Counts& counts) const;
  comm::Gradients backward(const at::Tensor& dy, const Kept& kept);

  Sizes sizes;
  cuda::Target target;
  nn::SavePolicy saving;
  bool grouped, scales_input, first_of_etp;
  GroupedProduct products;
  ExpertRowKernels rows;
  nn::Param fc1, fc2;
  std::optional<nn::Param> bias1, bias2;
};

namespace {

// body(expert, first row, rows) of those that have rows.
template <class Body>
void each_expert(const std::vector<int64_t>& counts, const Body& body) {
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0) body(static_cast<int64_t>(e), first, counts[e]);
    first += counts[e];
  }
}

// out = a b.
void plain_product(const cuda::Target& target, at::Tensor out, const at::Tensor& a, const at::Tensor& b) {
  at::mm_out(out, a, b);
  const double flops =
      2.0 * static_cast<double>(a.size(0)) * static_cast<double>(a.size(1)) * static_cast<double>(b.size(1));
  cuda::issued(target, {"mm", {&a, &b}, {&out}, {}, flops});
}

}  // namespace

Experts::State::Counts Experts::State::counts_of(const ExpertRows& in) const {
  Counts counts{in.counts, {}};
  if (grouped) return counts;
  const int64_t experts = in.counts.numel(), all = in.x.size(0);
  if (target.meta) {  // nobody knows: as even as can be
    for (int64_t e = 0; e < experts; ++e) counts.host.push_back(all * (e + 1) / experts - all * e / experts);
    return counts;
  }
  const at::Tensor host = cuda::read_on_host(target, in.counts);
  int64_t left = all;
  for (int64_t e = 0; e < experts; ++e) {
    counts.host.push_back(std::min(host.const_data_ptr<int64_t>()[e], left));
    left -= counts.host.back();
  }
  return counts;
}

at::Tensor Experts::State::product(const at::Tensor& x, const nn::Param& weight, const Counts& counts) const {
  if (grouped) return products.forward(x, weight.data, counts.device);
  const at::Tensor y = at::empty({x.size(0), weight.data.size(1)}, x.options());
  each_expert(counts.host, [&](int64_t e, int64_t first, int64_t n) {
    plain_product(target, y.narrow(0, first, n), x.narrow(0, first, n), weight.data.select(0, e).t());
  });
  return y;
}

at::Tensor Experts::State::input_gradient(const at::Tensor& dy, const nn::Param& weight, const Counts& counts) const {
  if (grouped) return products.input_gradient(dy, weight.data, counts.device);
  const at::Tensor dx = at::empty({dy.size(0), weight.data.size(2)}, dy.options());
  each_expert(counts.host, [&](int64_t e, int64_t first, int64_t n) {
    plain_product(target, dx.narrow(0, first, n), dy.narrow(0, first, n), weight.data.select(0, e));
  });
  return dx;
}

// Once for the whole stack: an expert without rows has had its use too.
void Experts::State::weight_gradient(nn::Param& weight, const at::Tensor& dy, const at::Tensor& x,
                                     const Counts& counts) const {
  weight.accumulate([&](at::Tensor& main_grad) {
    if (grouped) return products.add_weight_gradient(main_grad, dy, x, counts.device);
    each_expert(counts.host, [&](int64_t e, int64_t first, int64_t n) {
      at::Tensor gradient = main_grad.select(0, e);
      nn::put_linear_weight_gradient(target, gradient, dy.narrow(0, first, n), x.narrow(0, first, n), true);
    });
  });
}

at::Tensor Experts::State::forward(const ExpertRows& in) {
  const bool differentiates = at::GradMode::is_enabled();
  const at::NoGradGuard no_grad;
  const at::Tensor x = in.x.detach().contiguous(), probs = in.probs.detach().to(nn::acc_type(x.scalar_type()));
  const Counts counts = counts_of(in);
  const Factors factors{scales_input ? probs : at::Tensor(), scales_input ? at::Tensor() : probs};
  const at::Tensor inner = product(input(x, factors, counts), fc1, counts);
  const at::Tensor activated = activation(inner, factors, counts);
  const at::Tensor y = product(activated, fc2, counts);
  // The results are summands over etp: one of them has the bias.
  if (bias2 && first_of_etp) rows.add_bias(y, bias2->data, factors.probs, counts.device);
  if (!differentiates) return y;
  const at::AutoGradMode grad(true);
  return comm::attach(y, {in.x, in.probs},
                      [this, kept = keep(x, inner, activated, factors, counts),
                       type = in.probs.scalar_type()](const at::Tensor& dy) -> comm::Gradients {
                        const at::NoGradGuard no_grad;
                        comm::Gradients gradients = backward(dy.contiguous(), kept);
                        gradients[1] = gradients[1].to(type);
                        return gradients;
                      });
}

Experts::State::Kept Experts::State::keep(const at::Tensor& x, const at::Tensor& inner, const at::Tensor& activated,
                                          const Factors& factors, const Counts& counts) const {
  Kept kept{saving.keep(x), saving.keep(inner), {}, factors, counts};
  kept.activated = saving.recomputes(nn::SavePoint::expert_activation)
                       ? nn::Saved::recomputed([this, again = kept.inner, factors, counts] {
                           return activation(again.get(), factors, counts);
                         })
                       : saving.keep(activated);
  return kept;
}

comm::Gradients Experts::State::backward(const at::Tensor& dy, const Kept& kept) {
  const Counts& counts = kept.counts;
  const Factors& p = kept.factors;
  const at::Tensor dprobs = at::empty_like(scales_input ? p.input : p.probs);
  at::Tensor gradient = input_gradient(dy, fc2, counts);
  weight_gradient(fc2, dy, kept.activated.get(), counts);
  if (bias2) bias_gradient(*bias2, dy, p.probs, counts);
  gradient = rows.activation_backward(gradient, kept.inner.get(), data(bias1), p.probs, counts.device,
                                      scales_input ? at::Tensor() : dprobs);
  if (bias2 && first_of_etp && !scales_input) rows.add_bias_probs(dprobs, dy, bias2->data, counts.device);
  if (bias1) bias_gradient(*bias1, gradient, {}, counts);
  const at::Tensor x = kept.x.get();
  weight_gradient(fc1, gradient, input(x, p, counts), counts);
  gradient = input_gradient(gradient, fc1, counts);
  if (scales_input) gradient = rows.scale_backward(gradient, x, p.input, counts.device, dprobs);
  return {gradient, dprobs};
}

Experts::Experts(const std::string& name, const config::Model& model, const nn::LayerContext& context,
                 const ExpertContext& experts)
    : state_(std::make_unique<State>(name, model, context, experts)) {}

Experts::~Experts() = default;

at::Tensor Experts::forward(const ExpertRows& rows) { return state_->forward(rows); }

void Experts::collect_params(std::vector<nn::Param*>& params) {
  for (auto [weight, bias] : {std::pair(&state_->fc1, &state_->bias1), std::pair(&state_->fc2, &state_->bias2)}) {
    params.push_back(weight);
    if (*bias) params.push_back(&**bias);
  }
}

bool Experts::needs_host() const { return !state_->grouped; }

}  // namespace metroplex::moe

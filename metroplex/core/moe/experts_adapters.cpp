#include "moe/experts.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "nn/param_init.h"

namespace metroplex::moe {

using kernels::GroupedOp;
using topology::Axis;

// Over etp, fc1 is split by output features and fc2 by input features. The matrix that is not split has a partial
// gradient on each rank.
std::vector<Experts::Adapter> Experts::make_adapters(const std::string& name,
                                                     const std::vector<config::AdapterBox>& boxes, bool fc1,
                                                     const nn::LayerContext& context, const ExpertContext& at) const {
  std::vector<Adapter> made;
  const nn::Param& weight = fc1 ? fc1_ : fc2_;
  const int64_t experts = weight.global_shape[0], in = weight.global_shape[2];
  for (const config::AdapterBox& box : boxes) {
    const std::string module = name + "." + box.word;
    if (!context.peft.adapts(module)) continue;
    const int64_t rank = context.peft.rank(module);
    const auto param = [&](const char* suffix, std::vector<int64_t> shape, int cut_dim, nn::Init init) {
      topology::Placement placement;
      placement.grid = topology::Grid::expert;
      placement.cuts = stack_cuts({experts, cut_dim < 0 ? 0 : shape[static_cast<size_t>(cut_dim)]}, at, cut_dim);
      if (cut_dim < 0) placement.partial = Axis::etp;
      placement.regions = topology::expert_regions(name, experts, box.word + suffix);
      return nn::make_param({module + suffix, std::move(shape), std::move(placement), init}, context);
    };
    Adapter adapter{param(config::kLoraA, {experts, rank, in}, fc1 ? -1 : 2, nn::Init::uniform_fan_in),
                    param(config::kLoraB, {experts, box.size, rank}, fc1 ? 1 : -1, nn::Init::zeros)};
    const int64_t ranks = fc1 ? at.etp : 1;
    adapter.begin = box.begin / ranks, adapter.size = box.size / ranks;
    adapter.scale = context.peft.scale(module);
    made.push_back(std::move(adapter));
  }
  return made;
}

bool Experts::trains(const std::vector<Adapter>& adapters) {
  return std::any_of(adapters.begin(), adapters.end(), [](const Adapter& adapter) { return adapter.trains(); });
}

// Rows after the last group are unspecified in the products, and so in their sums.
void Experts::add_adapters(const std::vector<Adapter>& adapters, const at::Tensor& out, const at::Tensor& x,
                           const Counts& counts) const {
  for (const Adapter& adapter : adapters) {
    const at::Tensor hidden = product(GroupedOp::forward, x, adapter.a.data, counts);
    out.narrow(1, adapter.begin, adapter.size)
        .add_(product(GroupedOp::forward, hidden, adapter.b.data, counts), adapter.scale);
  }
}

void Experts::adapters_backward(std::vector<Adapter>& adapters, const at::Tensor& dx, const at::Tensor& dy,
                                const at::Tensor& x, const Counts& counts) const {
  for (Adapter& adapter : adapters) {
    const at::Tensor region_dy = dy.narrow(1, adapter.begin, adapter.size).mul(adapter.scale);
    const at::Tensor dhidden = product(GroupedOp::input_gradient, region_dy, adapter.b.data, counts);
    dx.add_(product(GroupedOp::input_gradient, dhidden, adapter.a.data, counts));
    if (!adapter.b.frozen)
      weight_gradient(adapter.b, region_dy, product(GroupedOp::forward, x, adapter.a.data, counts), counts);
    if (!adapter.a.frozen) weight_gradient(adapter.a, dhidden, x, counts);
  }
}

}  // namespace metroplex::moe

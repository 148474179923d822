#include "nn/lora.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/philox.h"
#include "comm/collectives.h"
#include "nn/linear.h"
#include "nn/matmul.h"
#include "nn/param_init.h"
#include "nn/wide.h"

namespace metroplex::nn {

Adapters::Adapters(const AdapterSpec& spec, const LayerContext& context)
    : target_(context.target),
      saving_(context.saving),
      input_shards_(spec.split == LinearSplit::input ? context.tp : comm::Group()),
      dora_(context.peft.use_dora),
      dropout_(context.peft.lora_dropout),
      num_shards_(spec.split == LinearSplit::input ? context.tp.size() : 1),
      shard_(spec.split == LinearSplit::input ? context.tp.index() : 0) {
  for (const config::AdapterBox& box : spec.boxes) {
    if (context.peft.adapts(config::adapter_module(spec.linear, box.word)))
      adapters_.push_back(make_adapter(spec, box, context));
  }
}

Adapters::Adapter Adapters::make_adapter(const AdapterSpec& spec, const config::AdapterBox& box,
                                         const LayerContext& context) const {
  using topology::Axis;
  using topology::even_shard;
  const comm::Group& tp = context.tp;
  const std::string module = config::adapter_module(spec.linear, box.word);
  const int64_t rank = context.peft.rank(module);
  topology::Placement a, b;
  if (spec.split == LinearSplit::output) {
    a.partial = Axis::tp;
    b.cuts = {even_shard(0, Axis::tp, box.rows(), tp.size(), tp.index())};
  } else if (spec.split == LinearSplit::input) {
    a.cuts = {even_shard(1, Axis::tp, spec.in_features, tp.size(), tp.index())};
    b.partial = Axis::tp;
  } else {
    a.partial = b.partial = context.sp_axes;
  }
  const auto param = [&](const char* name, std::vector<int64_t> shape, topology::Placement placement, Init init,
                         at::ScalarType dtype) {
    return std::make_shared<Param>(
        make_param({module + name, std::move(shape), std::move(placement), init, dtype}, context));
  };
  Adapter made;
  made.a = param(config::kLoraA, {rank, spec.in_features}, a, Init::uniform_fan_in, context.dtype);
  made.b = param(config::kLoraB, {box.rows(), rank}, b, Init::zeros, context.dtype);
  // A magnitude in a half type would scale its row by up to a part in 512.
  if (dora_) made.magnitude = param(config::kLoraMagnitude, {box.rows()}, b, Init::ones, acc_type(context.dtype));
  made.scale = context.peft.scale(module);
  made.key = random_key(context.seed ^ base::hash_name(module.c_str()), 0, RandomSite::adapter_input);
  // With several groups a rank holds whole groups. With a single group a rank holds a shard of it.
  const int64_t ranks = spec.split == LinearSplit::output ? tp.size() : 1;
  const bool by_groups = box.repeats % ranks == 0;
  const int64_t divisor = by_groups ? 1 : ranks;
  made.groups = by_groups ? box.repeats / ranks : box.repeats;
  made.width = box.width / divisor, made.begin = box.begin / divisor, made.size = box.size / divisor;
  return made;
}

bool Adapters::need_input() const {
  return std::any_of(adapters_.begin(), adapters_.end(), [](const Adapter& adapter) { return !adapter.a->frozen; });
}

AdapterRows Adapters::rows(at::IntArrayRef sizes, int64_t first_row, const Microbatch& batch) const {
  if (empty() || dropout_ == 0) return {};
  const DropoutKey key{0, 0, RandomSite::adapter_input, dropout_, target_};
  return columns_mask(sizes, key, {first_row, num_shards_, shard_}, batch);
}

at::Tensor Adapters::apply_dropout(const at::Tensor& x, const Adapter& adapter, const AdapterRows& rows) const {
  if (!rows.counters.defined()) return x;
  AdapterRows own = rows;
  own.shape.key = adapter.key;
  return with_mask(target_, x, own);
}

at::Tensor Adapters::output_region(const at::Tensor& out, const Adapter& adapter) const {
  return out.view({-1, adapter.groups, adapter.width}).narrow(2, adapter.begin, adapter.size);
}

// |w + s b A|^2 = |w|^2 + 2 s (w A^T) b + s^2 b (A A^T) b for a row w of W and b of B, without the product B A. The
// sums over shards of columns are added.
at::Tensor Adapters::row_lengths(const at::Tensor& weight, const Adapter& adapter) const {
  const at::ScalarType wide = acc_type(weight.scalar_type());
  const at::Tensor& lora_a = adapter.a->data;
  const auto in_groups = [&](const at::Tensor& rows) { return rows.view({adapter.groups, adapter.size, -1}); };
  const at::Tensor rows = weight.view({adapter.groups, adapter.width, -1}).narrow(1, adapter.begin, adapter.size);
  const at::Tensor cross = linear_product(target_, rows, lora_a.t()).to(wide),
                   gram = linear_product(target_, lora_a, lora_a.t()).to(wide),
                   lora_b = in_groups(adapter.b->data).to(wide);
  const at::Tensor squares = at::linalg_vector_norm(rows, 2, at::IntArrayRef{-1}, false, wide).square_();
  squares.add_((cross * lora_b).sum(-1), 2 * adapter.scale);
  squares.add_((lora_b.matmul(gram) * lora_b).sum(-1), adapter.scale * adapter.scale);
  comm::all_reduce(squares, input_shards_);
  return squares.sqrt_();
}

at::Tensor Adapters::scale_factors(const Adapter& adapter, const at::Tensor& lengths) const {
  return adapter.magnitude->data.view({adapter.groups, adapter.size}).div(lengths);
}

std::vector<AdapterValues> Adapters::add_outputs(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                                                 const AdapterRows& rows) const {
  std::vector<AdapterValues> values;
  for (const Adapter& adapter : adapters_) {
    const at::Tensor h = linear_product(target_, apply_dropout(x, adapter, rows), adapter.a->data.t());
    if (adapter.scale != 1) h.mul_(adapter.scale);
    const at::Tensor delta = linear_product(target_, h, adapter.b->data.t());
    const at::Tensor region = output_region(out, adapter);
    region.add_(delta.view({-1, adapter.groups, adapter.size}));
    values.push_back({h, {}, {}});
    if (!dora_) continue;
    values.back().unscaled = region.clone();
    values.back().lengths = row_lengths(weight, adapter);
    region.mul_(scale_factors(adapter, values.back().lengths));
  }
  return values;
}

std::vector<SavedAdapter> Adapters::keep(const std::vector<AdapterValues>& values) const {
  std::vector<SavedAdapter> saved;
  for (size_t i = 0; i < values.size(); ++i) {
    const Adapter& adapter = adapters_[i];
    const bool magnitude = dora_ && !adapter.magnitude->frozen;
    saved.push_back({adapter.b->frozen ? Saved() : saving_.keep(values[i].hidden),
                     magnitude ? saving_.keep(values[i].unscaled) : Saved(), values[i].lengths});
  }
  return saved;
}

at::Tensor Adapters::unscale_gradients(const at::Tensor& dy, const std::vector<SavedAdapter>& saved) const {
  if (!scale_output()) return dy;
  const at::Tensor scaled = dy.clone();
  for (size_t i = 0; i < adapters_.size(); ++i) {
    const Adapter& adapter = adapters_[i];
    const at::Tensor region = output_region(scaled, adapter);
    if (!adapter.magnitude->frozen) {
      const at::Tensor products = (region * saved[i].unscaled.get()).div(saved[i].lengths);
      accumulate_bias_gradient(target_, *adapter.magnitude, products.reshape({-1, adapter.groups * adapter.size}));
    }
    region.mul_(scale_factors(adapter, saved[i].lengths));
  }
  return scaled;
}

std::vector<at::Tensor> Adapters::add_input_gradients(const at::Tensor& dx, const at::Tensor& dy,
                                                      const AdapterRows& rows) const {
  std::vector<at::Tensor> dhidden;
  for (const Adapter& adapter : adapters_) {
    const at::Tensor region_dy = output_region(dy, adapter).reshape({dy.size(0), dy.size(1), -1});
    const at::Tensor dh = linear_product(target_, region_dy, adapter.b->data);
    if (adapter.scale != 1) dh.mul_(adapter.scale);
    dx.add_(apply_dropout(linear_product(target_, dh, adapter.a->data), adapter, rows));
    dhidden.push_back(dh);
  }
  return dhidden;
}

void Adapters::accumulate(const Backward& call, const AdapterRows& rows) const {
  for (size_t i = 0; i < adapters_.size(); ++i) {
    const Adapter& adapter = adapters_[i];
    if (!adapter.b->frozen) {
      const at::Tensor region_dy = output_region(call.dy, adapter).reshape({call.dy.size(0), call.dy.size(1), -1});
      accumulate_weight_gradient(target_, *adapter.b, region_dy, call.saved[i].hidden.get());
    }
    if (!adapter.a->frozen)
      accumulate_weight_gradient(target_, *adapter.a, call.dhidden[i], apply_dropout(call.x, adapter, rows));
  }
}

void Adapters::collect_params(std::vector<Param*>& params) {
  for (Adapter& adapter : adapters_) {
    params.push_back(adapter.a.get());
    params.push_back(adapter.b.get());
    if (adapter.magnitude) params.push_back(adapter.magnitude.get());
  }
}

}  // namespace metroplex::nn

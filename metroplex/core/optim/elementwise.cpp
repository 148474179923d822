#include "optim/elementwise.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/block8.h"

namespace metroplex::optim {
namespace {

bool is_half(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

}  // namespace

Elementwise::Elementwise(const config::OptimizerTraits& traits, ElementwiseUpdate* update,
                         const config::Optim& config, std::vector<Shard> slices, const OptimizerContext& context)
    : config_(config),
      kernel_(std::string(traits.name) + "_step"),
      update_(update),
      moments_(traits.kept(config)),
      seed_(context.seed),
      target_(context.target) {
  if (config.optimizer_cpu_offload) target_.device = at::kCPU;
  MPX_ASSERT(moments_.size() <= 2, traits.name, " keeps ", moments_.size(), " moments; a range holds at most two");
  for (const Shard& slice : slices) {
    index_[{slice.param, slice.begin}] = items_.size();
    items_.push_back(make_item(slice, context));
  }
  if (config.optimizer_cpu_offload) make_chunks();
  copy_from_params();
}

Elementwise::Item Elementwise::make_item(const Shard& slice, const OptimizerContext& context) const {
  Item item;
  item.slice = slice;
  item.group = context.groups->of(*slice.param);
  const at::ScalarType dtype = slice.values.scalar_type();
  const bool bf16_alone = dtype == at::kBFloat16 && config_.main_params_dtype == config::MainParamsDtype::bf16;
  const auto options = at::TensorOptions().device(target_.memory());
  item.in_place = !is_half(dtype) || bf16_alone;
  if (!item.in_place && config_.store_param_remainders) {
    MPX_CHECK(dtype == at::kBFloat16, "optim", "optim.store_param_remainders is for bf16 parameters");
    item.remainder = at::empty({slice.size()}, options.dtype(at::kShort));
  } else if (!item.in_place) {
    item.main = at::empty({slice.size()}, options.dtype(at::kFloat));
  }
  for (const config::OptimizerMoment& moment : moments_) {
    item.moments.emplace_back(
        slice.size(), MomentStorage::Form{config_.*moment.dtype, dtype == at::kDouble, moment.non_negative, target_});
  }
  return item;
}

void Elementwise::make_chunks() {
  std::vector<HostChunk> chunks;
  for (size_t i = 0; i < items_.size(); ++i) {
    const Item& item = items_[i];
    for (int64_t begin = 0; begin < item.slice.size(); begin += kOffloadChunk) {
      const int64_t size = std::min(kOffloadChunk, item.slice.size() - begin);
      chunks.push_back({item.slice.values.narrow(0, begin, size), item.slice.gradient.narrow(0, begin, size),
                        item.in_place || item.remainder.defined()});
      chunks_.push_back({i, begin});
    }
  }
  host_.emplace(std::move(chunks));
}

void Elementwise::copy_from_params() {
  for (Item& item : items_) {
    if (!item.in_place) set_main(item, item.slice.values);
  }
}

at::Tensor Elementwise::main_values(const Item& item) const {
  if (!item.remainder.defined()) return item.main;
  const at::Tensor param = item.slice.values.to(item.remainder.device());
  at::Tensor out = at::empty(param.sizes(), param.options().dtype(at::kFloat));
  const auto* upper = static_cast<const uint16_t*>(param.const_data_ptr());
  const auto* lower = static_cast<const uint16_t*>(item.remainder.const_data_ptr());
  device::launch(target_, {"join_floats", {&param, &item.remainder}, {&out}}, kernels::join_floats,
                 kernels::join_floats_cuda, upper, lower, out.numel(), static_cast<float*>(out.mutable_data_ptr()));
  return out;
}

// Also writes the parameter, which is the rounded main parameter.
void Elementwise::set_main(Item& item, const at::Tensor& from) const {
  if (!item.remainder.defined()) {
    item.main.copy_(from);
    item.slice.values.copy_(item.main);
    return;
  }
  const at::Device device = item.remainder.device();
  const at::Tensor wide = from.to(device, at::kFloat).contiguous();
  const at::Tensor param = at::empty(wide.sizes(), wide.options().dtype(at::kBFloat16));
  auto* const upper = static_cast<uint16_t*>(param.mutable_data_ptr());
  auto* const lower = static_cast<uint16_t*>(item.remainder.mutable_data_ptr());
  device::launch(target_, {"split_floats", {&wide}, {&param, &item.remainder}}, kernels::split_floats,
                 kernels::split_floats_cuda, static_cast<const float*>(wide.const_data_ptr()), wide.numel(), upper,
                 lower);
  item.slice.values.copy_(param);
}

kernels::OptimizerRange Elementwise::make_range(Item& item, const Range& range) const {
  kernels::OptimizerRange out;
  out.n = range.values.numel();
  out.grad = range.gradient.const_data_ptr();
  out.grad_number = to_number(range.gradient.scalar_type());
  void* const values = range.values.mutable_data_ptr();
  const kernels::Number number = to_number(range.values.scalar_type());
  if (item.in_place) {
    out.main = values;
    out.main_number = number;
  } else {
    out.param = values;
    out.param_number = number;
    if (item.remainder.defined()) {
      out.remainder = static_cast<uint16_t*>(item.remainder.mutable_data_ptr()) + range.begin;
    } else {
      out.main = static_cast<float*>(item.main.mutable_data_ptr()) + range.begin;
    }
  }
  if (!item.moments.empty()) out.first = item.moments[0].array(range.begin);
  if (item.moments.size() > 1) out.second = item.moments[1].array(range.begin);
  out.stochastic = true;
  out.noise_key = seed_ ^ base::hash_name(item.slice.param->name.c_str());
  out.noise_start = item.slice.begin + range.begin;
  return out;
}

void Elementwise::add(Item& item, const Range& range, ElementwiseStep& step) const {
  if (range.values.numel() == 0) return;
  const bool reads_values = item.in_place || item.remainder.defined();
  std::vector<const at::Tensor*> state{&item.main, &item.remainder};
  for (const MomentStorage& moment : item.moments) {
    for (const at::Tensor* part : {&moment.data(), &moment.scales()}) state.push_back(part);
  }
  step.ranges.push_back({make_range(item, range), step.state.place(item.group).rates});
  step.reads.push_back(&range.gradient);
  if (reads_values) step.reads.push_back(&range.values);
  step.reads.insert(step.reads.end(), state.begin(), state.end());
  step.writes.push_back(&range.values);
  step.writes.insert(step.writes.end(), state.begin(), state.end());
}

void Elementwise::update(Item& item, const Range& range, const StepState& state) const {
  ElementwiseStep step{kernel_.c_str(), target_, state, {}, {&state.tensor()}, {}};
  add(item, range, step);
  if (!step.ranges.empty()) update_(config_, step);
}

void Elementwise::step(const StepState& state) {
  if (!host_ && target_.gpu()) {
    std::vector<Range> ranges;  // the step points to their tensors
    for (const Item& item : items_) ranges.push_back({0, item.slice.values, item.slice.gradient});
    ElementwiseStep all{kernel_.c_str(), target_, state, {}, {&state.tensor()}, {}};
    for (size_t i = 0; i < items_.size(); ++i) add(items_[i], ranges[i], all);
    if (!all.ranges.empty()) update_(config_, all);
    return;
  }
  if (!host_) {
    for (Item& item : items_) update(item, {0, item.slice.values, item.slice.gradient}, state);
    return;
  }
  const StepState host_state = state.on_host();
  if (!target_.meta && host_state.values()->updates == 0) return;
  host_->run([&](size_t i, const at::Tensor& values, const at::Tensor& gradient) {
    update(items_[chunks_[i].item], {chunks_[i].begin, values, gradient}, host_state);
  });
}

std::vector<State> Elementwise::state() {
  std::vector<State> all;
  for (const Item& item : items_) {
    const Shard& slice = item.slice;
    const auto add = [&](const std::string& kind, at::ScalarType dtype, std::function<at::Tensor()> values) {
      all.push_back({slice.param, kind, slice.begin, slice.end, dtype, std::move(values)});
    };
    if (!item.in_place) add("main", at::kFloat, [this, &item] { return main_values(item); });
    for (size_t k = 0; k < moments_.size(); ++k)
      add(moments_[k].kind, item.moments[k].values_dtype(), [&item, k] { return item.moments[k].values(); });
  }
  return all;
}

void Elementwise::restore(const State& state, const at::Tensor& values) {
  const auto found = index_.find({state.param, state.begin});
  MPX_ASSERT(found != index_.end(), "state of ", state.param->name, ", which is not updated here");
  Item& item = items_[found->second];
  if (state.kind == "main") return set_main(item, values);
  const auto kind = std::find_if(moments_.begin(), moments_.end(),
                                 [&](const config::OptimizerMoment& moment) { return state.kind == moment.kind; });
  MPX_ASSERT(kind != moments_.end(), "state of kind ", state.kind);
  item.moments[static_cast<size_t>(kind - moments_.begin())].set(values);
}

Optimizer::Bytes Elementwise::bytes() const {
  Bytes bytes;
  for (const Item& item : items_) {
    if (item.main.defined()) bytes.main_params += static_cast<int64_t>(item.main.nbytes());
    if (item.remainder.defined()) bytes.main_params += static_cast<int64_t>(item.remainder.nbytes());
    for (const MomentStorage& moment : item.moments) bytes.moments += moment.bytes();
  }
  if (host_) return {0, 0, bytes.main_params + bytes.moments + host_->bytes()};
  return bytes;
}

}  // namespace metroplex::optim

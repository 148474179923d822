#include "optim/elementwise.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/error.h"
#include "base/philox.h"
#include "cuda/kernels/optimizer_storage.h"

namespace metroplex::optim {
namespace {

namespace kernels = cuda::kernels;

bool half(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

}  // namespace

Elementwise::Elementwise(const std::string& name, const config::Optim& config, std::vector<Slice> slices,
                         const OptimizerContext& context)
    : config_(config), seed_(context.seed) {
  MPX_CHECK(name == "adam" || name == "sgd" || name == "lion", "optim", "optim.optimizer '", name,
            "' is unknown; choose adam, sgd, lion or muon");
  rule_ = name == "adam" ? Rule::adam : name == "sgd" ? Rule::sgd : Rule::lion;
  if (rule_ == Rule::adam) kinds_ = {"exp_avg", "exp_avg_sq"};
  if (rule_ == Rule::lion) kinds_ = {"exp_avg"};
  if (rule_ == Rule::sgd && config.sgd_momentum != 0) kinds_ = {"momentum_buffer"};
  for (const Slice& slice : slices) items_.push_back(make_item(slice, context));
  params_changed();
}

Elementwise::Item Elementwise::make_item(const Slice& slice, const OptimizerContext& context) const {
  Item item;
  item.slice = slice;
  item.group = context.groups->of(*slice.param);
  const at::ScalarType dtype = slice.values.scalar_type();
  const bool bf16_alone = dtype == at::kBFloat16 && config_.main_params_dtype == "bf16";
  item.in_place = !half(dtype) || bf16_alone;
  if (!item.in_place && config_.store_param_remainders) {
    MPX_CHECK(dtype == at::kBFloat16, "optim", "optim.store_param_remainders is for bf16 parameters");
    item.remainder = at::empty({slice.size()}, at::kShort);
  } else if (!item.in_place) {
    item.main = at::empty({slice.size()}, at::kFloat);
  }
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const bool second = k == 1;
    item.moments.emplace_back(slice.size(), second ? config_.exp_avg_sq_dtype : config_.exp_avg_dtype,
                              dtype == at::kDouble, second);
  }
  return item;
}

// The main parameter starts as the parameter.
void Elementwise::params_changed() {
  for (Item& item : items_) {
    if (!item.in_place) set_main(item, item.slice.values);
  }
}

at::Tensor Elementwise::main_values(const Item& item) const {
  if (!item.remainder.defined()) return item.main;
  at::Tensor out = at::empty({item.slice.size()}, at::kFloat);
  kernels::join_floats(static_cast<const uint16_t*>(item.slice.values.const_data_ptr()),
                       static_cast<const uint16_t*>(item.remainder.const_data_ptr()), out.numel(),
                       out.mutable_data_ptr<float>());
  return out;
}

// Writes the parameter too: it is the main parameter rounded.
void Elementwise::set_main(Item& item, const at::Tensor& from) const {
  if (!item.remainder.defined()) {
    item.main.copy_(from);
    item.slice.values.copy_(item.main);
    return;
  }
  const at::Tensor wide = from.to(at::kFloat).contiguous();
  kernels::split_floats(wide.const_data_ptr<float>(), wide.numel(),
                        static_cast<uint16_t*>(item.slice.values.mutable_data_ptr()),
                        static_cast<uint16_t*>(item.remainder.mutable_data_ptr()));
}

kernels::OptimizerRange Elementwise::range_of(Item& item) const {
  kernels::OptimizerRange range;
  range.n = item.slice.size();
  range.grad = item.slice.gradient.const_data_ptr();
  range.grad_number = number_of(item.slice.gradient.scalar_type());
  void* const values = item.slice.values.mutable_data_ptr();
  const kernels::Number number = number_of(item.slice.values.scalar_type());
  if (item.in_place) {
    range.main = values;
    range.main_number = number;
  } else {
    range.param = values;
    range.param_number = number;
    if (item.remainder.defined()) {
      range.remainder = static_cast<uint16_t*>(item.remainder.mutable_data_ptr());
    } else {
      range.main = item.main.mutable_data_ptr();
    }
  }
  if (!item.moments.empty()) range.first = item.moments[0].array();
  if (item.moments.size() > 1) range.second = item.moments[1].array();
  range.stochastic = true;
  range.noise_key = seed_ ^ base::hash_name(item.slice.param->name.c_str()) ^ (static_cast<uint64_t>(steps_) << 32);
  range.noise_start = item.slice.begin;
  return range;
}

void Elementwise::step(const StepArgs& args) {
  for (Item& item : items_) {
    if (item.slice.size() == 0) continue;
    const kernels::OptimizerRange range = range_of(item);
    const GroupRates& rates = args.rates.at(item.group);
    switch (rule_) {
      case Rule::adam:
        kernels::adam_step(range, {rates.lr, config_.adam_beta1, config_.adam_beta2, config_.adam_eps,
                                   rates.weight_decay, args.grad_factor, steps_ + 1});
        break;
      case Rule::sgd:
        kernels::sgd_step(range, {rates.lr, config_.sgd_momentum, rates.weight_decay, args.grad_factor, steps_ == 0});
        break;
      case Rule::lion:
        kernels::lion_step(range,
                           {rates.lr, config_.lion_beta1, config_.lion_beta2, rates.weight_decay, args.grad_factor});
        break;
    }
  }
  ++steps_;
}

std::vector<State> Elementwise::state() {
  std::vector<State> all;
  for (const Item& item : items_) {
    const Slice& slice = item.slice;
    if (!item.in_place) all.push_back({slice.param, "main", slice.begin, slice.end, main_values(item)});
    for (size_t k = 0; k < kinds_.size(); ++k)
      all.push_back({slice.param, kinds_[k], slice.begin, slice.end, item.moments[k].values()});
  }
  return all;
}

void Elementwise::restore(const State& state) {
  for (Item& item : items_) {
    if (item.slice.param != state.param || item.slice.begin != state.begin) continue;
    if (state.kind == "main") {
      set_main(item, state.tensor);
      return;
    }
    const auto kind = std::find(kinds_.begin(), kinds_.end(), state.kind);
    MPX_ASSERT(kind != kinds_.end(), "state of kind ", state.kind);
    item.moments[static_cast<size_t>(kind - kinds_.begin())].set(state.tensor);
    return;
  }
  MPX_ASSERT(false, "state of ", state.param->name, ", which is not updated here");
}

Optimizer::Bytes Elementwise::bytes() const {
  Bytes bytes;
  for (const Item& item : items_) {
    if (item.main.defined()) bytes.main_params += static_cast<int64_t>(item.main.nbytes());
    if (item.remainder.defined()) bytes.main_params += static_cast<int64_t>(item.remainder.nbytes());
    for (const Stored& moment : item.moments) bytes.moments += moment.bytes();
  }
  return bytes;
}

}  // namespace metroplex::optim

#include "pipeline/graphed_region.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "graph/tape.h"
#include "graph/graph.h"

namespace metroplex::pipeline {
namespace {

int64_t tensor_bytes(const at::Tensor& x) { return x.defined() ? static_cast<int64_t>(x.nbytes()) : 0; }

// Identifies a storage. Weak aliases share the address of their original. Tensors on the meta device have no address,
// so the allocator's block identifies them (device/memory_meter.h).
const void* storage_key(const at::Tensor& x) {
  const c10::DataPtr& data = x.storage().data_ptr();
  return data.get() != nullptr ? data.get() : data.get_context();
}

}  // namespace

at::Tensor StaticBuffers::buffer_for(const at::Tensor& value, int64_t nth) {
  at::Tensor& buffer = buffers_[{value.sizes().vec(), value.scalar_type(), nth}];
  if (!buffer.defined()) buffer = at::empty(value.sizes(), value.options());
  return buffer;
}

int64_t StaticBuffers::bytes() const {
  int64_t bytes = 0;
  for (const auto& [form, buffer] : buffers_) bytes += tensor_bytes(buffer);
  return bytes;
}

std::map<std::string, int64_t> StaticBuffers::sizes() const {
  std::map<std::string, int64_t> sizes;
  for (const auto& [form, buffer] : buffers_)
    sizes[base::concat(graph::format_form(buffer), " ", std::get<2>(form))] = tensor_bytes(buffer);
  return sizes;
}

void InstanceMemory::add_result(const at::Tensor& result) {
  if (result.defined()) results.insert(storage_key(result));
}

bool InstanceMemory::holds(const at::Tensor& x) const { return results.contains(storage_key(x)); }

GraphedRegion::GraphedRegion(const nn::Region& region, InstanceMemory& memory)
    : island_(region),
      memory_(memory),
      forward_(memory.device.make_graph(memory.pool)),
      backward_(memory.device.make_graph(memory.pool)) {}

void GraphedRegion::copy_in(const Entry& entry, const at::Tensor& value) const {
  const at::NoGradGuard no_grad;
  entry.place.copy_(value, /*non_blocking=*/true);
}

void GraphedRegion::set_input(const Entry& entry, const at::Tensor& value) const {
  MPX_CHECK(
      graph::same_form(value, entry.place), "cuda graph", name(), " was captured with ", entry.name, " ",
      graph::format_form(entry.place), " and gets ", graph::format_form(value),
      ", which does not follow from the form of the microbatch; leave it out of train.cuda_graph_modules, or set "
      "train.cuda_graph_impl: none");
  if (entry.copied) return copy_in(entry, value);
  MPX_ASSERT(!value.defined() || value.const_data_ptr() == entry.place.const_data_ptr(), name(), " got ", entry.name,
             " at another address than at the capture");
}

graph::GraphSize GraphedRegion::capture(graph::Graph& graph, const char* pass,
                                        const std::function<void()>& work) const {
  try {
    graph::capture(graph, work);
    return graph.size();
  } catch (const base::Error& error) {
    if (error.room() != "cuda graph") throw;
    base::throw_error("cuda graph", base::concat(pass, " of ", name(), ": ", base::message_of(error)));
  }
}

nn::Values GraphedRegion::forward(const nn::Values& x, const Forward& how) {
  nn::Values out;
  if (!forward_->captured()) {
    out = capture_forward(x, how);
  } else {
    MPX_ASSERT(x.size() == inputs_.size(), name(), " gets ", x.size(), " values for ", inputs_.size());
    auto entry = inputs_.begin();
    for (const auto& [value_name, value] : x) set_input(*entry++, value.tensor());
    forward_->replay();
    out = outputs_;
  }
  if (how.terms == nullptr) return out;
  for (const nn::LossTerm& term : terms_) how.terms->push_back({term.name, term.sum.clone()});
  return out;
}

int64_t GraphedRegion::count_copied(const at::Tensor& x) const {
  return std::count_if(inputs_.begin(), inputs_.end(),
                       [&](const Entry& entry) { return entry.copied && graph::same_form(entry.place, x); });
}

// The output of an earlier graph of the instance has the same address in every replay and is read in place. Any other
// input gets a static buffer, which forward() fills before each replay. Outputs are kept as weak aliases
// (graph::weak_alias). Once the capturing run has dropped them, the pool may reuse their memory for later captures;
// every replay repeats that reuse.
nn::Values GraphedRegion::capture_forward(const nn::Values& x, const Forward& how) {
  nn::Values in, out;
  inputs_.clear();  // tape_check::CheckedGraphs captures again in every run
  for (const auto& [value_name, value] : x) {
    const at::Tensor& tensor = value.tensor();
    if (memory_.holds(tensor)) {
      inputs_.push_back({value_name, graph::weak_alias(tensor), false});
      in.add(value_name, tensor);
      continue;
    }
    int64_t nth = count_copied(tensor);
    for (const GraphedRegion& region : how.earlier) nth += region.count_copied(tensor);
    inputs_.push_back({value_name, memory_.inputs.buffer_for(tensor, nth), true});
    copy_in(inputs_.back(), tensor);
    in.add(value_name, inputs_.back().place);
  }
  nn::LossTerms terms;
  run_ = {};
  forward_size_ = capture(*forward_, "forward", [&] {
    out = nn::run_forward(island_, in, {how.batch, nullptr, &terms}, how.evaluates ? nullptr : &run_);
  });
  outputs_ = {};
  terms_.clear();
  for (const auto& [value_name, value] : out) {
    memory_.add_result(value.tensor());
    outputs_.add(value_name, graph::weak_alias(value.tensor()));
  }
  for (const nn::LossTerm& term : terms) terms_.push_back({term.name, graph::weak_alias(term.sum)});
  return out;
}

// The graph accumulates into main_grad. The listeners that may allocate main_grad therefore run first, and an
// uninitialized main_grad is zeroed. Pending external gradients of a parameter are also added here. Uses are reported
// after the whole replay, so a gradient bucket may start its reduction later than without a graph.
nn::Gradients GraphedRegion::backward(const nn::Gradients& dy, const at::Tensor& loss_factor) {
  for (auto uses = island_.params.rbegin(); uses != island_.params.rend(); ++uses) {
    for (int i = 0; i < uses->times; ++i) uses->param->notify_before_use();
    uses->param->zero_uninitialized();
    uses->param->synchronize();
  }
  nn::Gradients dx;
  if (!backward_->captured()) {
    dx = capture_backward(dy, loss_factor);
  } else {
    MPX_ASSERT(dy.size() == gradients_.size(), name(), " gets ", dy.size(), " gradients for ", gradients_.size());
    for (size_t i = 0; i < dy.size(); ++i) set_input(gradients_[i], dy[i]);
    if (loss_factor_) set_input(*loss_factor_, loss_factor);
    backward_->replay();
    dx = input_gradients_;
  }
  for (auto uses = island_.params.rbegin(); uses != island_.params.rend(); ++uses) {
    for (int i = 0; i < uses->times; ++i) uses->param->notify_use();
  }
  return dx;
}

nn::Gradients GraphedRegion::capture_backward(const nn::Gradients& dy, const at::Tensor& loss_factor) {
  MPX_ASSERT(run_.region != nullptr, "backward of ", name(), " without its forward");
  nn::Gradients in, dx;
  gradients_.clear();
  const auto add_input = [&](std::string what, const at::Tensor& gradient, int64_t nth) {
    const bool chained = !gradient.defined() || memory_.holds(gradient);
    const at::Tensor place = chained ? gradient : memory_.gradients.buffer_for(gradient, nth);
    const Entry entry{std::move(what), chained ? graph::weak_alias(gradient) : place, !chained};
    if (!chained) copy_in(entry, gradient);
    return std::pair(entry, place);
  };
  auto output = outputs_.begin();
  for (size_t i = 0; i < dy.size(); ++i, ++output) {
    auto [entry, place] = add_input("the gradient of " + output->name, dy[i], static_cast<int64_t>(i));
    gradients_.push_back(std::move(entry));
    in.push_back(place);
  }
  at::Tensor factor;
  loss_factor_.reset();
  if (!run_.terms.empty()) {
    auto [entry, place] = add_input("the factor of loss terms", loss_factor, -1);
    loss_factor_ = std::move(entry);
    factor = place;
  }
  backward_size_ = capture(*backward_, "backward", [&] {
    dx = nn::run_backward(std::move(run_), in, factor, /*notifies_uses=*/false);
    // A gradient that passes through unchanged must not alias a static buffer, which the next backward overwrites.
    for (at::Tensor& gradient : dx) {
      for (size_t i = 0; i < in.size() && gradient.defined(); ++i) {
        if (gradients_[i].copied && gradient.is_alias_of(in[i])) gradient = gradient.clone();
      }
    }
  });
  run_ = {};
  input_gradients_.clear();
  for (const at::Tensor& gradient : dx) {
    memory_.add_result(gradient);
    input_gradients_.push_back(graph::weak_alias(gradient));
  }
  return dx;
}

graph::GraphSize GraphedRegion::size() const {
  return {forward_size_.nodes + backward_size_.nodes, forward_size_.bytes + backward_size_.bytes};
}

int64_t GraphedRegion::result_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, value] : outputs_) {
    const at::Tensor& x = value.tensor();
    const bool passes = std::any_of(inputs_.begin(), inputs_.end(), [&](const Entry& entry) {
      return entry.place.defined() && entry.place.const_data_ptr() == x.const_data_ptr();
    });
    if (!passes) bytes += tensor_bytes(x);
  }
  return bytes;
}

}  // namespace metroplex::pipeline

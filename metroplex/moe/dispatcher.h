// How tokens reach the ranks of their experts and how the results come back. A dispatcher is a file of dispatchers/
// and a line of the table in dispatcher.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "config/model.h"
#include "cuda/launch_point.h"
#include "moe/context.h"
#include "moe/experts.h"
#include "moe/router.h"
#include "nn/value.h"

namespace metroplex::moe {

struct DispatcherSpec {
  ExpertContext experts;
  cuda::Target target;
  config::Model model;

  int64_t num_experts() const { return model.num_moe_experts; }
  int64_t local_experts() const { return model.num_moe_experts / experts.ep; }
  int64_t topk() const { return model.moe_router_topk; }
  // Every expert gets its capacity's rows from every rank, whatever was routed.
  bool pads_to_capacity() const { return model.has_capacity() && model.moe_pad_expert_input_to_capacity; }
  // Rows that an expert takes at most of the `tokens` tokens of one rank; 0: no limit.
  int64_t capacity(int64_t tokens) const;
};

// What arrived, and what bring_back() needs of it: named values, integers all of them.
struct Dispatched {
  ExpertRows rows;
  nn::Values state;
};

class Dispatcher {
 public:
  explicit Dispatcher(DispatcherSpec spec) : spec_(std::move(spec)) {}
  virtual ~Dispatcher() = default;
  // Whether send() waits for numbers of the device: at one point, as late as it can.
  virtual bool needs_host() const = 0;

  // x [T, h], the tokens of this rank -> rows for the local experts. `meanwhile` (may be empty) is called once, after
  // communication has begun where there is any. Differentiable in x and routing.probs. Collective over the experts'
  // ranks.
  virtual Dispatched send(const at::Tensor& x, const Routing& routing, const std::function<void()>& meanwhile) = 0;
  // y [R, h], of the local experts -> [T, h]: the sum of what the chosen experts of all ranks made of each token.
  // `state` holds the values that send() returned, among others.
  virtual at::Tensor bring_back(const at::Tensor& y, const nn::Values& state) = 0;

 protected:
  DispatcherSpec spec_;
};

// model.moe_token_dispatcher_type, which is not auto.
std::unique_ptr<Dispatcher> make_dispatcher(config::TokenDispatcher type, DispatcherSpec spec);

}  // namespace metroplex::moe

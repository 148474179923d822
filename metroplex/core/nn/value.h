// Named values passed from one segment to the next; some are integer tensors. A value is a tensor, or a pending
// bias-dropout-add that the next norm fuses into its own pass over memory. A pending sum is computed at the boundary
// of an autograd region; both paths give the same bits. Inside a region a tensor may have a Saved that recomputes it
// in backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/dropout.h"
#include "nn/dropout_norm.h"

namespace metroplex::nn {

// Names that every model uses. hidden_states: [s (/tp with sequence parallelism), b, h].
inline constexpr const char* kHiddenStates = "hidden_states";
inline constexpr const char* kLoss = "loss";      // scalar: sum over the microbatch of mask times loss
inline constexpr const char* kLogits = "logits";  // [s, b, vocabulary]

// residual + dropout(x + bias), with the arguments of bias_dropout_add; x is a temporary that no other code reads.
struct PendingSum {
  at::Tensor x, residual;
  BiasDropoutAdd how;
};

class Value {
 public:
  Value() = default;
  Value(at::Tensor tensor) : tensor_(std::move(tensor)) {}  // NOLINT: a plain tensor is a value
  Value(PendingSum sum) : sum_(std::move(sum)) {}           // NOLINT: and so is a sum
  Value(Input in)
      : tensor_(std::move(in.x)), recomputed_(std::move(in.recomputed)) {}  // NOLINT: or the input of layers

  bool defined() const { return is_pending() || tensor_.defined(); }
  bool is_pending() const { return sum_.has_value(); }
  const PendingSum& sum() const { return *sum_; }
  // Asserts that the value is not pending.
  const at::Tensor& tensor() const;
  Input input() const { return {tensor(), recomputed_}; }
  // Computes a pending sum, differentiably in grad mode; no-op for a tensor.
  void compute(const Microbatch& batch);

 private:
  at::Tensor tensor_;
  Saved recomputed_;
  std::optional<PendingSum> sum_;
};

// State on the host that follows the values of a microbatch from segment to segment. CUDA graphs do not carry it.
struct HostState {
  virtual ~HostState() = default;
};

class Values {
 public:
  struct Entry {
    std::string name;
    Value value;
  };

  Values() = default;
  Values(std::string name, Value value) { add(std::move(name), std::move(value)); }

  // Asserts that the name is not yet present.
  Values& add(std::string name, Value value);
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // These assert that the name is present; tensor() also asserts that the value is not pending.
  const Value& at(std::string_view name) const;
  const at::Tensor& tensor(std::string_view name) const { return at(name).tensor(); }

  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }

  std::shared_ptr<HostState> host;

 private:
  const Value* find(std::string_view name) const;
  std::vector<Entry> entries_;
};

// Returns the value as the residual, and its norm; fused with the sum if the value is pending. Without a norm, both
// are the value.
ResidualAndNorm residual_and_norm(const Value& value, Norm* norm, const SavePolicy& saving, const Microbatch& batch);

}  // namespace metroplex::nn

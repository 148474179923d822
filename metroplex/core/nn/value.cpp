#include "nn/value.h"

#include "base/error.h"

namespace metroplex::nn {

const at::Tensor& Value::tensor() const {
  MPX_ASSERT(!is_pending(), "a pending bias-dropout-add was read as a tensor before Value::make");
  return tensor_;
}

void Value::compute(const Microbatch& batch) {
  if (!is_pending()) return;
  tensor_ = bias_dropout_add(sum_->x, sum_->residual, sum_->how, batch);
  sum_.reset();
}

Values& Values::add(std::string name, Value value) {
  MPX_ASSERT(!has(name), "two values are called ", name);
  entries_.push_back({std::move(name), std::move(value)});
  return *this;
}

const Value* Values::find(std::string_view name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == name) return &entry.value;
  }
  return nullptr;
}

const Value& Values::at(std::string_view name) const {
  const Value* const found = find(name);
  MPX_ASSERT(found != nullptr, "a segment reads the value ", name, ", which the segment before it does not return");
  return *found;
}

ResidualAndNorm residual_and_norm(const Value& value, Norm* norm, const SavePolicy& saving, const Microbatch& batch) {
  if (norm == nullptr) {
    Value sum = value;
    sum.compute(batch);
    return fork_sum(sum.tensor());
  }
  if (value.is_pending()) {
    const PendingSum& sum = value.sum();
    return bias_dropout_add_norm(sum.x, sum.residual, {sum.how, norm, saving}, batch);
  }
  return sum_and_norm(value.tensor(), *norm, saving);
}

}  // namespace metroplex::nn

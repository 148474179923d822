#include "train/batch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "comm/collectives.h"

namespace metroplex::train {
namespace {

template <class T>
void copy_row(at::Tensor& matrix, int64_t row, const std::vector<T>& values) {
  MPX_ASSERT(matrix.size(1) == static_cast<int64_t>(values.size()), "samples of one microbatch differ in length");
  auto* out = matrix.mutable_data_ptr<int64_t>() + row * matrix.size(1);
  for (size_t i = 0; i < values.size(); ++i) out[i] = values[i];
}

// Header of a broadcast: present, b, s, has documents.
constexpr int64_t kHeader = 4;

}  // namespace

nn::Microbatch stack_samples(const HostBatch& batch, at::ScalarType float_type) {
  const int64_t b = static_cast<int64_t>(batch.samples.size()),
                s = static_cast<int64_t>(batch.samples.at(0).tokens.size());
  nn::Microbatch out;
  out.tokens = at::empty({b, s}, at::kLong);
  out.labels = at::empty({b, s}, at::kLong);
  out.position_ids = at::empty({b, s}, at::kLong);
  at::Tensor mask = at::empty({b, s}, at::kFloat);
  const bool documents = !batch.samples[0].document_ids.empty();
  if (documents) out.document_ids = at::empty({b, s}, at::kLong);
  for (int64_t row = 0; row < b; ++row) {
    const data::Sample& sample = batch.samples[row];
    copy_row(out.tokens, row, sample.tokens);
    copy_row(out.labels, row, sample.labels);
    copy_row(out.position_ids, row, sample.position_ids);
    if (documents) copy_row(out.document_ids, row, sample.document_ids);
    std::copy(sample.loss_mask.begin(), sample.loss_mask.end(), mask.mutable_data_ptr<float>() + row * s);
  }
  out.loss_mask = mask.to(float_type);
  out.sample_ids = at::arange(b, at::kLong).mul_(batch.stride).add_(batch.first_sample);
  return out;
}

std::optional<nn::Microbatch> broadcast_batch(const std::optional<nn::Microbatch>& mine, const comm::Group& group,
                                              at::ScalarType float_type) {
  if (group.size() == 1) return mine;
  at::Tensor header = at::zeros({kHeader}, at::kLong);
  int64_t* h = header.mutable_data_ptr<int64_t>();
  if (group.first() && mine) {
    h[0] = 1;
    h[1] = mine->tokens.size(0);
    h[2] = mine->tokens.size(1);
    h[3] = mine->document_ids.defined();
  }
  comm::broadcast(header, 0, group);
  if (h[0] == 0) return std::nullopt;
  const int64_t b = h[1], s = h[2], planes = 3 + h[3];
  at::Tensor ids = at::empty({planes * b * s + b}, at::kLong);
  at::Tensor mask = at::empty({b, s}, float_type);
  const auto plane = [&](int64_t p) { return ids.narrow(0, p * b * s, b * s).view({b, s}); };
  if (group.first()) {
    plane(0).copy_(mine->tokens);
    plane(1).copy_(mine->labels);
    plane(2).copy_(mine->position_ids);
    if (planes > 3) plane(3).copy_(mine->document_ids);
    ids.narrow(0, planes * b * s, b).copy_(mine->sample_ids);
    mask.copy_(mine->loss_mask);
  }
  comm::broadcast(ids, 0, group);
  comm::broadcast(mask, 0, group);
  nn::Microbatch out;
  out.tokens = plane(0);
  out.labels = plane(1);
  out.position_ids = plane(2);
  if (planes > 3) out.document_ids = plane(3);
  out.sample_ids = ids.narrow(0, planes * b * s, b);
  out.loss_mask = mask;
  return out;
}

std::optional<nn::Microbatch> BatchStream::next(const SampleNumbers& numbers) {
  std::optional<nn::Microbatch> mine;
  if (loader_) {
    HostBatch batch;
    batch.first_sample = numbers.first;
    batch.stride = numbers.stride;
    if (loader_->next(batch.samples) && !batch.samples.empty()) mine = stack_samples(batch, float_type_);
  }
  return broadcast_batch(mine, group_, float_type_);
}

}  // namespace metroplex::train

#include "train/batch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <bit>

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

void check_tokens(const HostBatch& batch, int64_t row, const char* what, const std::vector<int64_t>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    MPX_CHECK(tokens[i] >= 0 && tokens[i] < batch.vocab_size, "data", what, " ", i, " of sample ",
              batch.numbers.first + row * batch.numbers.stride, " is ", tokens[i], ", outside the vocabulary of ",
              batch.vocab_size, "; the data set was made with another tokenizer");
  }
}

// Header of a broadcast: present, b, s, has documents, the bits of the loss mask's sum.
constexpr int64_t kHeader = 5;

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  return device.is_cpu() ? host : host.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace

nn::Microbatch stack_samples(const HostBatch& batch, at::ScalarType float_type) {
  const int64_t b = static_cast<int64_t>(batch.samples.size()),
                s = static_cast<int64_t>(batch.samples.at(0).tokens.size());
  MPX_ASSERT(batch.vocab_size > 0, "samples whose vocabulary is not told");
  nn::Microbatch out;
  out.tokens = at::empty({b, s}, at::kLong);
  out.labels = at::empty({b, s}, at::kLong);
  out.position_ids = at::empty({b, s}, at::kLong);
  at::Tensor mask = at::empty({b, s}, at::kFloat);
  const bool documents = !batch.samples[0].document_ids.empty();
  if (documents) out.document_ids = at::empty({b, s}, at::kLong);
  for (int64_t row = 0; row < b; ++row) {
    const data::Sample& sample = batch.samples[row];
    check_tokens(batch, row, "token", sample.tokens);
    check_tokens(batch, row, "label", sample.labels);
    copy_row(out.tokens, row, sample.tokens);
    copy_row(out.labels, row, sample.labels);
    copy_row(out.position_ids, row, sample.position_ids);
    if (documents) copy_row(out.document_ids, row, sample.document_ids);
    std::copy(sample.loss_mask.begin(), sample.loss_mask.end(), mask.mutable_data_ptr<float>() + row * s);
  }
  out.loss_mask = mask.to(float_type);
  out.mask_sum = out.loss_mask.sum(at::kDouble).item<double>();
  nn::set_counters(out, batch.numbers.step,
                   at::arange(b, at::kLong).mul_(batch.numbers.stride).add_(batch.numbers.first));
  return out;
}

nn::Microbatch on_device(const nn::Microbatch& host, at::Device device) {
  nn::Microbatch out = host;
  if (device.is_cpu()) return out;
  for (const auto& [name, tensor] : nn::kMicrobatchTensors) {
    if ((out.*tensor).defined()) out.*tensor = to_device(out.*tensor, device);
  }
  return out;
}

std::optional<nn::Microbatch> broadcast_batch(const std::optional<nn::Microbatch>& mine, const comm::Group& group,
                                              at::ScalarType float_type, at::Device device) {
  if (group.size() == 1) return mine ? std::optional(on_device(*mine, device)) : std::nullopt;
  const bool sends = group.first() && mine;
  at::Tensor header = at::zeros({kHeader}, at::kLong);
  int64_t* h = header.mutable_data_ptr<int64_t>();
  if (sends) {
    h[0] = 1;
    h[1] = mine->tokens.size(0);
    h[2] = mine->tokens.size(1);
    h[3] = mine->document_ids.defined();
    h[4] = std::bit_cast<int64_t>(mine->mask_sum);
  }
  comm::broadcast(header, 0, group);
  if (h[0] == 0) return std::nullopt;
  const int64_t b = h[1], s = h[2], planes = 3 + h[3];
  at::Tensor ids = at::empty({planes * b * s + b + 1},
                             at::TensorOptions().dtype(at::kLong).device(sends ? at::Device(at::kCPU) : device));
  at::Tensor mask = sends ? to_device(mine->loss_mask.to(float_type).contiguous(), device)
                          : at::empty({b, s}, at::TensorOptions().dtype(float_type).device(device));
  const auto plane = [&](int64_t p) { return ids.narrow(0, p * b * s, b * s).view({b, s}); };
  if (sends) {
    plane(0).copy_(mine->tokens);
    plane(1).copy_(mine->labels);
    plane(2).copy_(mine->position_ids);
    if (planes > 3) plane(3).copy_(mine->document_ids);
    ids.narrow(0, planes * b * s, b).copy_(mine->sample_counters);
    ids.narrow(0, planes * b * s + b, 1).copy_(mine->step);
    ids = to_device(ids, device);
  }
  comm::broadcast(ids, 0, group);
  comm::broadcast(mask, 0, group);
  nn::Microbatch out;
  out.tokens = plane(0);
  out.labels = plane(1);
  out.position_ids = plane(2);
  if (planes > 3) out.document_ids = plane(3);
  const at::Tensor counters = ids.narrow(0, planes * b * s, b + 1).clone();  // dropout keeps it, and not the batch
  out.sample_counters = counters.narrow(0, 0, b);
  out.step = counters.narrow(0, b, 1);
  out.loss_mask = mask;
  out.mask_sum = std::bit_cast<double>(h[4]);
  return out;
}

std::optional<nn::Microbatch> BatchStream::next(const SampleNumbers& numbers) {
  std::optional<nn::Microbatch> mine;
  if (loader_) {
    HostBatch batch;
    batch.numbers = numbers;
    batch.vocab_size = vocab_size_;
    if (loader_->next(batch.samples) && !batch.samples.empty()) mine = stack_samples(batch, float_type_);
  }
  return broadcast_batch(mine, group_, float_type_, device_);
}

}  // namespace metroplex::train

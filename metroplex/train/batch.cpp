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

// What hosts tell each other of a microbatch: present, b, s, has documents, the bits of the loss mask's sum.
constexpr int64_t kHeader = 5;

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  return device.is_cpu() ? host : host.pin_memory().to(device, /*non_blocking=*/true);
}

// Both sides make the message of this size: planes of b s numbers, the samples' counters, the step.
struct BatchMessage {
  at::Tensor ids, mask;
  int64_t b, s, planes;

  at::Tensor plane(int64_t p) const { return ids.narrow(0, p * b * s, b * s).view({b, s}); }
  at::Tensor counters() const { return ids.narrow(0, planes * b * s, b + 1); }
};

struct OnWire {
  at::ScalarType float_type;
  at::Device device;
};

BatchMessage empty_message(const int64_t* header, const OnWire& wire, at::Device device) {
  const int64_t b = header[1], s = header[2], planes = 3 + header[3];
  return {at::empty({planes * b * s + b + 1}, at::TensorOptions().dtype(at::kLong).device(device)),
          at::empty({b, s}, at::TensorOptions().dtype(wire.float_type).device(device)), b, s, planes};
}

BatchMessage message_of(const nn::Microbatch& batch, const int64_t* header, const OnWire& wire) {
  BatchMessage out = empty_message(header, wire, at::kCPU);
  out.plane(0).copy_(batch.tokens);
  out.plane(1).copy_(batch.labels);
  out.plane(2).copy_(batch.position_ids);
  if (out.planes > 3) out.plane(3).copy_(batch.document_ids);
  out.counters().narrow(0, 0, out.b).copy_(batch.sample_counters);
  out.counters().narrow(0, out.b, 1).copy_(batch.step);
  out.mask.copy_(batch.loss_mask);
  out.ids = to_device(out.ids, wire.device);
  out.mask = to_device(out.mask, wire.device);
  return out;
}

nn::Microbatch batch_of(const BatchMessage& message, double mask_sum) {
  nn::Microbatch out;
  out.tokens = message.plane(0);
  out.labels = message.plane(1);
  out.position_ids = message.plane(2);
  if (message.planes > 3) out.document_ids = message.plane(3);
  const at::Tensor counters = message.counters().clone();  // dropout keeps it, and not the batch
  out.sample_counters = counters.narrow(0, 0, message.b);
  out.step = counters.narrow(0, message.b, 1);
  out.loss_mask = message.mask;
  out.mask_sum = mask_sum;
  return out;
}

void write_header(int64_t* h, const nn::Microbatch& batch) {
  h[0] = 1;
  h[1] = batch.tokens.size(0);
  h[2] = batch.tokens.size(1);
  h[3] = batch.document_ids.defined();
  h[4] = std::bit_cast<int64_t>(batch.mask_sum);
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
  MPX_ASSERT(batch.numbers.step >= 0, "a microbatch has samples and no step");
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

std::vector<nn::Microbatch> broadcast_batches(const std::vector<nn::Microbatch>& mine, int64_t most,
                                              const comm::Group& group, at::ScalarType float_type,
                                              at::Device device) {
  MPX_ASSERT(static_cast<int64_t>(mine.size()) <= most, mine.size(), " microbatches of at most ", most);
  std::vector<nn::Microbatch> out;
  if (group.size() == 1) {
    for (const nn::Microbatch& batch : mine) out.push_back(on_device(batch, device));
    return out;
  }
  const at::Tensor headers = at::zeros({most, kHeader}, at::kLong);
  int64_t* h = headers.mutable_data_ptr<int64_t>();
  for (size_t m = 0; group.first() && m < mine.size(); ++m)
    write_header(h + static_cast<int64_t>(m) * kHeader, mine[m]);
  comm::broadcast(headers, 0, group);
  const OnWire wire{float_type, device};
  for (int64_t m = 0; m < most && h[0] != 0; ++m, h += kHeader) {
    const BatchMessage message =
        group.first() ? message_of(mine[static_cast<size_t>(m)], h, wire) : empty_message(h, wire, device);
    comm::broadcast(message.ids, 0, group);
    comm::broadcast(message.mask, 0, group);
    out.push_back(batch_of(message, std::bit_cast<double>(h[4])));
  }
  return out;
}

std::vector<nn::Microbatch> BatchStream::next(const std::vector<SampleNumbers>& numbers) {
  std::vector<nn::Microbatch> mine;
  for (const SampleNumbers& of : numbers) {
    if (!loader_) break;
    HostBatch batch;
    batch.numbers = of;
    batch.vocab_size = vocab_size_;
    if (!loader_->next(batch.samples) || batch.samples.empty()) break;
    mine.push_back(stack_samples(batch, float_type_));
  }
  return broadcast_batches(mine, static_cast<int64_t>(numbers.size()), group_, float_type_, device_);
}

}  // namespace metroplex::train

#include "optim/host_chunks.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace metroplex::optim {
namespace {

int64_t tensor_bytes(const at::Tensor& x) { return static_cast<int64_t>(x.nbytes()); }

at::Tensor view_buffer(const at::Tensor& buffer, const at::Tensor& like) {
  return buffer.narrow(0, 0, tensor_bytes(like)).view(like.scalar_type());
}

}  // namespace

HostChunks::HostChunks(std::vector<HostChunk> chunks) : chunks_(std::move(chunks)) {
  if (chunks_.empty()) return;
  const at::Device device = chunks_.front().values.device();
  stream_.emplace(device);
  int64_t values = 0, gradient = 0;
  for (const HostChunk& chunk : chunks_) {
    values = std::max(values, tensor_bytes(chunk.values));
    gradient = std::max(gradient, tensor_bytes(chunk.gradient));
  }
  const auto options = at::TensorOptions()
                           .dtype(at::kByte)
                           .device(device.is_meta() ? device : at::Device(at::kCPU))
                           .pinned_memory(device.is_cuda());
  for (HostBuffers& buffers : buffers_) {
    buffers.values = at::empty({values}, options);
    buffers.gradient = at::empty({gradient}, options);
  }
}

at::Tensor HostChunks::host_values(size_t i) const {
  return view_buffer(buffers_[i % kNumBuffers].values, chunks_[i].values);
}
at::Tensor HostChunks::host_gradient(size_t i) const {
  return view_buffer(buffers_[i % kNumBuffers].gradient, chunks_[i].gradient);
}

// The slot is free: the side stream orders this copy after the copy that returned the slot's last values.
void HostChunks::fetch(size_t i) {
  stream_->run([&] {
    host_gradient(i).copy_(chunks_[i].gradient, /*non_blocking=*/true);
    if (chunks_[i].reads_values) host_values(i).copy_(chunks_[i].values, /*non_blocking=*/true);
  });
  buffers_[i % kNumBuffers].fetched = stream_->mark();
}

void HostChunks::run(const Work& work) {
  if (chunks_.empty()) return;
  stream_->wait_for_current();
  fetch(0);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (i + 1 < chunks_.size()) fetch(i + 1);
    buffers_[i % kNumBuffers].fetched.synchronize();
    work(i, host_values(i), host_gradient(i));
    stream_->run([&] { chunks_[i].values.copy_(host_values(i), /*non_blocking=*/true); });
  }
  stream_->current_waits();
}

int64_t HostChunks::bytes() const {
  int64_t sum = 0;
  for (const HostBuffers& buffers : buffers_) {
    if (buffers.values.defined()) sum += tensor_bytes(buffers.values) + tensor_bytes(buffers.gradient);
  }
  return sum;
}

}  // namespace metroplex::optim

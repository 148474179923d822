#include "optim/host_chunks.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace metroplex::optim {
namespace {

int64_t bytes_of(const at::Tensor& x) { return static_cast<int64_t>(x.nbytes()); }

at::Tensor view_of(const at::Tensor& room, const at::Tensor& like) {
  return room.narrow(0, 0, bytes_of(like)).view(like.scalar_type());
}

}  // namespace

HostChunks::HostChunks(std::vector<HostChunk> chunks) : chunks_(std::move(chunks)) {
  if (chunks_.empty()) return;
  const at::Device device = chunks_.front().values.device();
  stream_.emplace(device);
  int64_t values = 0, gradient = 0;
  for (const HostChunk& chunk : chunks_) {
    values = std::max(values, bytes_of(chunk.values));
    gradient = std::max(gradient, bytes_of(chunk.gradient));
  }
  const auto options = at::TensorOptions()
                           .dtype(at::kByte)
                           .device(device.is_meta() ? device : at::Device(at::kCPU))
                           .pinned_memory(device.is_cuda());
  for (Slot& slot : slots_) {
    slot.values = at::empty({values}, options);
    slot.gradient = at::empty({gradient}, options);
  }
}

at::Tensor HostChunks::host_values(size_t i) const { return view_of(slots_[i % kSlots].values, chunks_[i].values); }
at::Tensor HostChunks::host_gradient(size_t i) const {
  return view_of(slots_[i % kSlots].gradient, chunks_[i].gradient);
}

// The slot is free: the side stream orders this copy after the copy that returned the slot's last values.
void HostChunks::fetch(size_t i) {
  stream_->run([&] {
    host_gradient(i).copy_(chunks_[i].gradient, /*non_blocking=*/true);
    if (chunks_[i].reads_values) host_values(i).copy_(chunks_[i].values, /*non_blocking=*/true);
  });
  slots_[i % kSlots].here = stream_->mark();
}

void HostChunks::run(const Work& work) {
  if (chunks_.empty()) return;
  stream_->wait_for_current();
  fetch(0);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (i + 1 < chunks_.size()) fetch(i + 1);
    slots_[i % kSlots].here.synchronize();
    work(i, host_values(i), host_gradient(i));
    stream_->run([&] { chunks_[i].values.copy_(host_values(i), /*non_blocking=*/true); });
  }
  stream_->current_waits();
}

int64_t HostChunks::bytes() const {
  int64_t sum = 0;
  for (const Slot& slot : slots_) {
    if (slot.values.defined()) sum += bytes_of(slot.values) + bytes_of(slot.gradient);
  }
  return sum;
}

}  // namespace metroplex::optim

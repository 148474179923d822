// The pipeline of optim.optimizer_cpu_offload. For each chunk, gradients are copied to the host, the update runs
// there, and new values are copied back. The next chunk's copy overlaps the current update; on a GPU it uses a side
// stream and pinned memory. If the device is the CPU, the same code copies between buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "device/side_stream.h"

namespace metroplex::optim {

// Elements per chunk; large enough to hide the latency of a copy.
inline constexpr int64_t kOffloadChunk = int64_t{1} << 22;

// One-dimensional tensors of equal size on one device. They must outlive the steps.
struct HostChunk {
  at::Tensor values, gradient;
  bool reads_values = false;  // the update also needs the old values
};

class HostChunks {
 public:
  explicit HostChunks(std::vector<HostChunk> chunks);

  // `values` and `gradient` are host copies; `values` is copied back after the call.
  using Work = std::function<void(size_t chunk, const at::Tensor& values, const at::Tensor& gradient)>;
  // Calls `work` for each chunk in order. Device work that the calling thread enqueues afterwards uses the new
  // values. The host does not wait for the copies.
  void run(const Work& work);
  int64_t bytes() const;  // size of the host buffers

 private:
  static constexpr size_t kNumBuffers = 2;
  struct HostBuffers {
    at::Tensor values, gradient;  // byte buffers
    device::SideStream::Mark fetched;
  };
  at::Tensor host_values(size_t chunk) const;
  at::Tensor host_gradient(size_t chunk) const;
  void fetch(size_t chunk);

  std::vector<HostChunk> chunks_;
  std::array<HostBuffers, kNumBuffers> buffers_;
  std::optional<device::SideStream> stream_;
};

}  // namespace metroplex::optim

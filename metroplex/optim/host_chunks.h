// The pipeline of optim.optimizer_cpu_offload: for each chunk, gradients are copied to the host, the update runs
// there, and the new values are copied back. The copy of the next chunk overlaps the update of this one, on a GPU on
// a side stream, through pinned memory. If the device is the CPU the same code copies between buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cuda/side_stream.h"

namespace metroplex::optim {

// Elements per chunk: enough to hide the latency of a copy.
inline constexpr int64_t kOffloadChunk = int64_t{1} << 22;

// One-dimensional tensors of equal size on one device, which outlive the steps.
struct HostChunk {
  at::Tensor values, gradient;
  bool reads_values = false;  // the update needs the old values too
};

class HostChunks {
 public:
  explicit HostChunks(std::vector<HostChunk> chunks);

  // `values` and `gradient` are the host's copies; `values` are copied back afterwards.
  using Work = std::function<void(size_t chunk, const at::Tensor& values, const at::Tensor& gradient)>;
  // Calls `work` for each chunk, in order. Work that the calling thread enqueues afterwards on the device sees the
  // new values; the host does not wait for them.
  void run(const Work& work);
  int64_t bytes() const;  // of the buffers

 private:
  static constexpr size_t kSlots = 2;
  struct Slot {
    at::Tensor values, gradient;  // room, as bytes
    cuda::SideStream::Mark here;
  };
  at::Tensor host_values(size_t chunk) const;
  at::Tensor host_gradient(size_t chunk) const;
  void fetch(size_t chunk);

  std::vector<HostChunk> chunks_;
  std::array<Slot, kSlots> slots_;
  std::optional<cuda::SideStream> stream_;  // where there are chunks
};

}  // namespace metroplex::optim

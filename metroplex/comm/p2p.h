// Point to point. batch_p2p is the raw form, from which pipeline/executor makes what its table says. PipelineP2p is
// the exchange between neighbouring stages by name, for code that has no table: forward activations go to the next
// rank of the group, gradients to the previous one, both around the ring (virtual stages).
//
// Modes: batched      all transfers of a call issued together, complete on return
//        overlapped   the same, complete when the handle of the result has been waited for
//        plain        one transfer after the other: even ranks send first, odd ranks receive first
//        ring         all transfers of a call as one exchange on one channel, ordered so that two ranks agree
// Forward and backward use channels of their own (ring: one), so two ranks that are each other's both neighbours
// never mix them up.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/collectives.h"
#include "comm/group.h"

namespace metroplex::comm {

// Tensors must be contiguous. An empty batch is nothing.
[[nodiscard]] Handle batch_p2p(std::vector<P2pOp> ops, const Group& group);

inline constexpr int kForwardChannel = 0;
inline constexpr int kBackwardChannel = 1;

using Shape = std::vector<int64_t>;

enum class P2pMode { batched, overlapped, plain, ring };

struct P2pOptions {
  P2pMode mode = P2pMode::batched;
  // The sender tells the shape (of at most 8 dims) before the data; shapes given are ignored. A combined call must
  // then be met by its mirror on the neighbour (send_forward_recv_backward by send_backward_recv_forward), never by
  // two single calls.
  bool variable_shapes = false;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

// What one call sends (undefined: nothing) and wants to receive.
struct Transfer {
  at::Tensor to_next, to_prev;
  bool from_prev = false;
  bool from_next = false;
  Shape shape_prev, shape_next;  // of what is received
};

// What came; undefined where nothing was wanted. To be read after handle.wait() (overlapped) or at once (other
// modes).
struct Received {
  at::Tensor from_prev, from_next;
  Handle handle;
};

class PipelineP2p {
 public:
  PipelineP2p(Group pp, P2pOptions options);

  // `first`/`last`: the stage (virtual stages counted) is the first or last of the model; then there is no neighbour,
  // nothing is sent and an undefined tensor comes back. These six return when their data are there, in every mode.
  at::Tensor recv_forward(const Shape& shape, bool first) const;
  at::Tensor recv_backward(const Shape& shape, bool last) const;
  void send_forward(const at::Tensor& output, bool last) const;
  void send_backward(const at::Tensor& input_gradient, bool first) const;
  at::Tensor send_forward_recv_backward(const at::Tensor& output, const Shape& shape, bool last) const;
  at::Tensor send_backward_recv_forward(const at::Tensor& input_gradient, const Shape& shape, bool first) const;

  // For virtual stages; an undefined tensor is not sent. What is sent must not be written before the handle is done.
  [[nodiscard]] Received send_forward_recv_forward(const at::Tensor& output, bool recv_prev,
                                                   const Shape& shape) const;
  [[nodiscard]] Received send_backward_recv_backward(const at::Tensor& input_gradient, bool recv_next,
                                                     const Shape& shape) const;
  [[nodiscard]] Received send_forward_backward_recv_forward_backward(const Transfer& transfer) const;

 private:
  Received communicate(const Transfer& transfer) const;
  Received communicate_and_wait(const Transfer& transfer) const;
  void exchange_shapes(Transfer& transfer) const;
  Handle issue(const Transfer& transfer, const Received& received) const;

  Group pp_;
  P2pOptions options_;
};

}  // namespace metroplex::comm

// Exchange between neighboring pipeline stages with the functions of Megatron's p2p_communication. Forward
// activations go to the next rank of the group, gradients to the previous one, both around the ring (virtual stages).
// Exercises the backends in every order; the executor's table uses only one.
//
// Modes: batched      issues all transfers of a call together, complete on return
//        overlapped   issues them together, complete after a wait on the handle of the result
//        plain        one transfer after the other: even ranks send first, odd ranks receive first
//        ring         all transfers of a call as one exchange on one channel, in an order that two ranks agree on
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/collectives.h"

namespace metroplex::comm {

using Shape = std::vector<int64_t>;

enum class P2pMode { batched, overlapped, plain, ring };

struct P2pOptions {
  P2pMode mode = P2pMode::batched;
  // The sender sends the shape (at most 8 dims) before the data; shape arguments are ignored. The neighbor must then
  // match a combined call by its mirror (send_forward_recv_backward by send_backward_recv_forward), never by two
  // single calls.
  bool variable_shapes = false;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

// Tensors that one call sends (undefined: none), and the neighbors that it receives from.
struct Transfer {
  at::Tensor to_next, to_prev;
  bool from_prev = false;
  bool from_next = false;
  Shape shape_prev, shape_next;
};

// Received tensors; undefined if none was requested. Valid after handle.wait() (overlapped) or at once (other modes).
struct Received {
  at::Tensor from_prev, from_next;
  Handle handle;
};

class PipelineP2p {
 public:
  PipelineP2p(Group pp, P2pOptions options);

  // `first`/`last`: the (virtual) stage is the first or last of the model and has no neighbor; nothing is sent and
  // the result is undefined. These six calls return after their data have arrived, in every mode.
  at::Tensor recv_forward(const Shape& shape, bool first) const;
  at::Tensor recv_backward(const Shape& shape, bool last) const;
  void send_forward(const at::Tensor& output, bool last) const;
  void send_backward(const at::Tensor& input_gradient, bool first) const;
  at::Tensor send_forward_recv_backward(const at::Tensor& output, const Shape& shape, bool last) const;
  at::Tensor send_backward_recv_forward(const at::Tensor& input_gradient, const Shape& shape, bool first) const;

  // For virtual stages; an undefined tensor is not sent. The caller must not write a sent tensor before the handle is
  // done.
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

inline constexpr int64_t kMaxDims = 8;

inline at::Tensor packed(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().contiguous() : tensor;
}

// A shape as a separate message on the tensor's device: the number of dims, then the dims.
inline at::Tensor pack_shape(const at::Tensor& tensor) {
  MPX_CHECK(tensor.dim() <= kMaxDims, "comm", "a tensor of ", tensor.dim(),
            " dims cannot be sent with its shape; at most ", kMaxDims);
  at::Tensor message = at::zeros({1 + kMaxDims}, at::kLong);
  auto* numbers = message.mutable_data_ptr<int64_t>();
  numbers[0] = tensor.dim();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) numbers[1 + dim] = tensor.size(dim);
  return message.to(tensor.device());
}

inline at::Tensor empty_shape_message(at::Device device) {
  return at::empty({1 + kMaxDims}, at::TensorOptions().dtype(at::kLong).device(device));
}

inline Shape unpack_shape(const at::Tensor& message) {
  const at::Tensor host = message.cpu();
  const auto* numbers = host.const_data_ptr<int64_t>();
  MPX_CHECK(numbers[0] >= 0 && numbers[0] <= kMaxDims, "comm", "a shape of ", numbers[0],
            " dims was received; at most ", kMaxDims);
  return Shape(numbers + 1, numbers + 1 + numbers[0]);
}

inline PipelineP2p::PipelineP2p(Group pp, P2pOptions options) : pp_(std::move(pp)), options_(options) {}

inline at::Tensor PipelineP2p::recv_forward(const Shape& shape, bool first) const {
  Transfer transfer;
  transfer.from_prev = !first;
  transfer.shape_prev = shape;
  return communicate_and_wait(transfer).from_prev;
}

inline at::Tensor PipelineP2p::recv_backward(const Shape& shape, bool last) const {
  Transfer transfer;
  transfer.from_next = !last;
  transfer.shape_next = shape;
  return communicate_and_wait(transfer).from_next;
}

inline void PipelineP2p::send_forward(const at::Tensor& output, bool last) const {
  Transfer transfer;
  if (!last) transfer.to_next = output;
  communicate_and_wait(transfer);
}

inline void PipelineP2p::send_backward(const at::Tensor& input_gradient, bool first) const {
  Transfer transfer;
  if (!first) transfer.to_prev = input_gradient;
  communicate_and_wait(transfer);
}

inline at::Tensor PipelineP2p::send_forward_recv_backward(const at::Tensor& output, const Shape& shape,
                                                          bool last) const {
  if (last) return at::Tensor();
  Transfer transfer;
  transfer.to_next = output;
  transfer.from_next = true;
  transfer.shape_next = shape;
  return communicate_and_wait(transfer).from_next;
}

inline at::Tensor PipelineP2p::send_backward_recv_forward(const at::Tensor& input_gradient, const Shape& shape,
                                                          bool first) const {
  if (first) return at::Tensor();
  Transfer transfer;
  transfer.to_prev = input_gradient;
  transfer.from_prev = true;
  transfer.shape_prev = shape;
  return communicate_and_wait(transfer).from_prev;
}

inline Received PipelineP2p::send_forward_recv_forward(const at::Tensor& output, bool recv_prev,
                                                       const Shape& shape) const {
  Transfer transfer;
  transfer.to_next = output;
  transfer.from_prev = recv_prev;
  transfer.shape_prev = shape;
  return communicate(transfer);
}

inline Received PipelineP2p::send_backward_recv_backward(const at::Tensor& input_gradient, bool recv_next,
                                                         const Shape& shape) const {
  Transfer transfer;
  transfer.to_prev = input_gradient;
  transfer.from_next = recv_next;
  transfer.shape_next = shape;
  return communicate(transfer);
}

inline Received PipelineP2p::send_forward_backward_recv_forward_backward(const Transfer& transfer) const {
  return communicate(transfer);
}

inline Received PipelineP2p::communicate_and_wait(const Transfer& transfer) const {
  Received received = communicate(transfer);
  received.handle.wait();
  return received;
}

inline Received PipelineP2p::communicate(const Transfer& wanted) const {
  Transfer transfer = wanted;
  transfer.to_next = packed(wanted.to_next);
  transfer.to_prev = packed(wanted.to_prev);
  if (options_.variable_shapes) exchange_shapes(transfer);
  const auto options = at::TensorOptions().dtype(options_.dtype).device(options_.device);
  Received received;
  if (transfer.from_prev) received.from_prev = at::empty(transfer.shape_prev, options);
  if (transfer.from_next) received.from_next = at::empty(transfer.shape_next, options);
  received.handle = issue(transfer, received);
  if (options_.mode != P2pMode::overlapped) received.handle.wait();
  return received;
}

inline void PipelineP2p::exchange_shapes(Transfer& transfer) const {
  Transfer shapes;
  Received received;
  if (transfer.to_next.defined()) shapes.to_next = pack_shape(transfer.to_next);
  if (transfer.to_prev.defined()) shapes.to_prev = pack_shape(transfer.to_prev);
  if (transfer.from_prev) received.from_prev = empty_shape_message(options_.device);
  if (transfer.from_next) received.from_next = empty_shape_message(options_.device);
  issue(shapes, received).wait();
  if (transfer.from_prev) transfer.shape_prev = unpack_shape(received.from_prev);
  if (transfer.from_next) transfer.shape_next = unpack_shape(received.from_next);
}

inline Handle PipelineP2p::issue(const Transfer& transfer, const Received& received) const {
  const int size = pp_.size();
  const int next = (pp_.index() + 1) % size;
  const int prev = (pp_.index() + size - 1) % size;
  const bool ring = options_.mode == P2pMode::ring;
  const int backward = ring ? kForwardChannel : kBackwardChannel;
  const P2pOp send_next{true, transfer.to_next, next, kForwardChannel};
  const P2pOp recv_prev{false, received.from_prev, prev, kForwardChannel};
  const P2pOp send_prev{true, transfer.to_prev, prev, backward};
  const P2pOp recv_next{false, received.from_next, next, backward};
  // A tensor sent to the previous rank arrives there from its next rank. With two ranks on one channel the receives
  // must have this order.
  std::vector<P2pOp> order{send_prev, recv_next, send_next, recv_prev};
  if (options_.mode == P2pMode::plain) {
    if (pp_.index() % 2 == 0) order = {send_next, recv_prev, send_prev, recv_next};
    else order = {recv_prev, send_next, recv_next, send_prev};
  }
  std::erase_if(order, [](const P2pOp& op) { return !op.tensor.defined(); });
  MPX_ASSERT(order.empty() || size > 1, "a pipeline of one stage has no neighbours");
  if (options_.mode != P2pMode::plain) return batch_p2p(std::move(order), pp_);
  for (const P2pOp& op : order) batch_p2p({op}, pp_).wait();
  return Handle();
}

}  // namespace metroplex::comm

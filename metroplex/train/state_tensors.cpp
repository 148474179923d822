#include "train/state_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace metroplex::train {
namespace {

// Elements [begin, end) of `values`, through a buffer on the host where they are not there already.
void hand_over(const at::Tensor& values, int64_t begin, int64_t end, const checkpoint::Sink& sink) {
  const auto width = static_cast<int64_t>(values.element_size());
  if (values.is_cpu()) {
    sink(static_cast<const char*>(values.const_data_ptr()) + begin * width,
         static_cast<size_t>((end - begin) * width));
    return;
  }
  const int64_t room = std::min(end - begin, kHostBufferBytes / width);
  const at::Tensor buffer = at::empty({room}, values.options().device(at::kCPU));
  for (int64_t at = begin; at < end; at += room) {
    const int64_t size = std::min(room, end - at);
    buffer.narrow(0, 0, size).copy_(values.narrow(0, at, size));
    sink(buffer.const_data_ptr(), static_cast<size_t>(size * width));
  }
}

}  // namespace

std::vector<optim::State> weight_states(const Assembly& a) {
  std::vector<optim::State> all;
  for (const distributed::Slice& slice : a.slices) {
    all.push_back({slice.param, "weight", slice.begin, slice.begin + slice.values.numel(), slice.values.scalar_type(),
                   [values = slice.values] { return values; }});
  }
  return all;
}

std::vector<optim::State> buffer_states(const Assembly& a) {
  std::vector<optim::State> all;
  for (const nn::Buffer* buffer : a.buffers) {
    const at::Tensor values = buffer->data.view(-1);
    all.push_back({buffer, "buffer", 0, buffer->numel(), values.scalar_type(), [values] { return values; }});
  }
  return all;
}

std::vector<optim::State> training_states(const Assembly& a) {
  std::vector<optim::State> all = weight_states(a);
  if (!a.optimizer) return all;
  for (optim::State& state : a.optimizer->state()) all.push_back(std::move(state));
  return all;
}

void add_pieces(const optim::State& state, std::vector<checkpoint::LocalPiece>& pieces) {
  for (const topology::BoxRange& box : box_ranges(*state.param, state.begin, state.end)) {
    checkpoint::LocalPiece piece{state.param->name, state.kind, state.param->global_shape,
                                 box.offset,        box.size,   file_dtype(state.dtype)};
    piece.begin = box.begin;
    piece.end = box.end;
    const int64_t from = box.local - state.begin, to = from + box.end - box.begin;
    piece.produce = [values = state.values, from, to](const checkpoint::Sink& sink) {
      hand_over(values(), from, to, sink);
    };
    pieces.push_back(std::move(piece));
  }
}

void fill(checkpoint::TensorSource& source, const optim::State& state, const at::Tensor& values,
          const std::string& kind) {
  const files::TensorForm* stored = source.find(state.param->name, kind);
  const at::ScalarType dtype = values.scalar_type();
  const at::ScalarType from = stored != nullptr ? scalar_type_of(stored->dtype) : dtype;
  const bool direct = from == dtype && values.is_cpu();
  // Padding is in no box, and stays 0.
  const at::Tensor target = direct ? values : at::zeros(values.sizes(), from);
  auto* const bytes = static_cast<char*>(target.mutable_data_ptr());
  for (const topology::BoxRange& box : box_ranges(*state.param, state.begin, state.end)) {
    source.fill({state.param->name, kind, state.param->global_shape, box.offset, box.size, file_dtype(from),
                 bytes + (box.local - state.begin) * static_cast<int64_t>(target.element_size()), box.begin,
                 box.end});
  }
  if (!direct) values.copy_(target);
}

}  // namespace metroplex::train

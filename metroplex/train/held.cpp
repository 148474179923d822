#include "train/held.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "train/pieces.h"

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

std::vector<Held> held_weights(const Assembly& a) {
  std::vector<Held> all;
  for (const optim::Slice& slice : a.slices) {
    all.push_back({slice.param, "weight", slice.begin, slice.begin + slice.values.numel(), slice.values.scalar_type(),
                   [values = slice.values] { return values; }});
  }
  return all;
}

std::vector<Held> held_state(const Assembly& a) {
  std::vector<Held> all = held_weights(a);
  if (!a.optimizer) return all;
  for (const optim::State& state : a.optimizer->state())
    all.push_back({state.param, state.kind, state.begin, state.end, state.dtype, state.values});
  return all;
}

void add_pieces(const Held& held, std::vector<checkpoint::LocalPiece>& pieces) {
  for (const topology::BoxRange& box : box_ranges(*held.param, held.begin, held.end)) {
    checkpoint::LocalPiece piece{held.param->name, held.kind, held.param->global_shape,
                                 box.offset,       box.size,  file_dtype(held.dtype)};
    piece.begin = box.begin;
    piece.end = box.end;
    const int64_t from = box.local - held.begin, to = from + box.end - box.begin;
    piece.produce = [values = held.values, from, to](const checkpoint::Sink& sink) {
      hand_over(values(), from, to, sink);
    };
    pieces.push_back(std::move(piece));
  }
}

void fill(checkpoint::Reader& reader, const Held& held, const at::Tensor& values, const std::string& kind) {
  const files::ManifestTensor* stored = reader.find(held.param->name, kind);
  const at::ScalarType dtype = values.scalar_type();
  const at::ScalarType source = stored != nullptr ? scalar_type_of(stored->dtype) : dtype;
  const bool direct = source == dtype && values.is_cpu();
  const at::Tensor target = direct ? values : at::empty(values.sizes(), source);
  auto* const bytes = static_cast<char*>(target.mutable_data_ptr());
  for (const topology::BoxRange& box : box_ranges(*held.param, held.begin, held.end)) {
    reader.fill({held.param->name, kind, held.param->global_shape, box.offset, box.size, file_dtype(source),
                 bytes + (box.local - held.begin) * static_cast<int64_t>(target.element_size()), box.begin, box.end});
  }
  if (!direct) values.copy_(target);
}

}  // namespace metroplex::train

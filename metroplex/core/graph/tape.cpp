#include "graph/tape.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/TensorImpl.h>

#include "base/error.h"

namespace metroplex::graph {

std::string text_of(const TapeScalar& scalar) {
  return scalar.name + " = " + std::visit([](const auto& value) { return base::concat(value); }, scalar.value);
}

TapeSpan to_span(const at::Tensor& x) {
  if (x.numel() == 0) return {};
  const auto begin = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  size_t elements = 1;
  for (int64_t d = 0; d < x.dim(); ++d) elements += static_cast<size_t>((x.size(d) - 1) * x.stride(d));
  return {begin, begin + elements * x.element_size()};
}

at::Tensor weak_alias(const at::Tensor& x) {
  if (!x.defined()) return x;
  const c10::Storage& held = x.storage();
  c10::Storage storage(c10::Storage::use_byte_size_t(), held.nbytes(),
                       c10::DataPtr(held.mutable_data(), held.device()));
  const c10::DispatchKey key = x.is_cuda()   ? c10::DispatchKey::CUDA
                               : x.is_meta() ? c10::DispatchKey::Meta
                                             : c10::DispatchKey::CPU;
  at::Tensor alias =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), x.dtype());
  c10::TensorImpl* impl = alias.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(x.sizes(), x.strides(), x.storage_offset());
  if (x.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return alias;
}

void Tape::replay() const {
  for (const TapeExternal& external : externals) {
    MPX_CHECK(!external.storage.expired(), "cuda graph", describe(*this, external.first_used),
              " uses memory that was freed after the capture; memory that a graph reads must stay allocated");
  }
  for (const TapeOperation& operation : operations) operation.run();
}

GraphSize Tape::size() const {
  GraphSize size;
  size.nodes = static_cast<int64_t>(operations.size());
  for (const TapeOperation& operation : operations) {
    size.bytes += static_cast<int64_t>(sizeof(TapeOperation) + operation.name.capacity() +
                                       operation.group.capacity() + operation.place.capacity());
    size.bytes += static_cast<int64_t>((operation.reads.capacity() + operation.writes.capacity()) *
                                       (sizeof(at::Tensor) + sizeof(c10::TensorImpl) + sizeof(c10::StorageImpl)));
    size.bytes += static_cast<int64_t>(operation.scalars.capacity() * sizeof(TapeScalar));
  }
  return size;
}

std::string describe(const Tape& tape, size_t operation) {
  const TapeOperation& at = tape.operations.at(operation);
  return base::concat("operation ", operation, ", ", at.name, at.group.empty() ? "" : " on " + at.group,
                      at.place.empty() ? "" : ", of " + at.place);
}

}  // namespace metroplex::graph

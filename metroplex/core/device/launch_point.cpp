#include "device/launch_point.h"

#include <ATen/ops/empty.h>

namespace metroplex::device {
namespace {

std::vector<at::Tensor> defined(at::ArrayRef<const at::Tensor*> tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor* tensor : tensors) {
    if (tensor != nullptr && tensor->defined()) all.push_back(tensor->variable_data());
  }
  return all;
}

}  // namespace

int64_t bytes_of(const Operation& operation) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : operation.reads) bytes += static_cast<int64_t>(tensor.nbytes());
  for (size_t i = 0; i + operation.scratch < operation.writes.size(); ++i)
    bytes += static_cast<int64_t>(operation.writes[i].nbytes());
  return bytes;
}

void record(Recorder& recorder, const Operands& operands, std::function<void()> run, std::string arguments) {
  std::vector<at::Tensor> writes = defined(operands.writes);
  const std::vector<at::Tensor> scratch = defined(operands.scratch);
  writes.insert(writes.end(), scratch.begin(), scratch.end());
  recorder.run({operands.name,
                {},
                defined(operands.reads),
                std::move(writes),
                operands.scalars,
                std::move(run),
                operands.flops,
                nullptr,
                std::move(arguments),
                {},
                scratch.size()});
}

void record_issued(Recorder& recorder, const Operands& operands) {
  recorder.issued(
      {operands.name, {}, defined(operands.reads), defined(operands.writes), operands.scalars, {}, operands.flops});
}

at::Tensor read_on_host(const Target& target, const at::Tensor& x) {
  MPX_ASSERT(!target.meta, "the host reads values of the meta device");
  const at::Tensor host = at::empty(x.sizes(), at::TensorOptions().dtype(x.scalar_type()));
  launch(
      target, {"read_on_host", {&x}, {&host}}, [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); },
      [](const at::Tensor& from, const at::Tensor& to, CUstream_st*) { to.copy_(from); }, x, host);
  return host;
}

// Uses pinned memory on a GPU: copies from pageable memory block the host.
void write_from_host(const Target& target, const at::Tensor& x, const at::Tensor& host) {
  const bool waits = target.gpu() && !target.meta;
  x.copy_(waits ? host.pin_memory() : host, /*non_blocking=*/true);
}

}  // namespace metroplex::device

#include "cuda/launch_point.h"

namespace metroplex::cuda {
namespace {

std::vector<at::Tensor> defined(std::initializer_list<const at::Tensor*> tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor* tensor : tensors) {
    if (tensor != nullptr && tensor->defined()) all.push_back(tensor->detach());
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

}  // namespace metroplex::cuda

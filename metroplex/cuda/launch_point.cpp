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

void record(Recorder& recorder, const Operands& operands, std::function<void()> run) {
  recorder.run(
      {operands.name, {}, defined(operands.reads), defined(operands.writes), operands.scalars, std::move(run)});
}

}  // namespace metroplex::cuda

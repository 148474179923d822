#include "nn/segment.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "base/error.h"

namespace metroplex::nn {

at::Tensor run_forward(Segment& segment, const at::Tensor& x, const Microbatch& batch, SegmentRun* run) {
  if (run == nullptr) {
    const at::NoGradGuard no_grad;
    return segment.forward(x, batch);
  }
  const at::AutoGradMode with_grad(true);
  at::Tensor input = x.defined() ? x.detach().requires_grad_(true) : x;
  at::Tensor output = segment.forward(input, batch);
  MPX_ASSERT(output.requires_grad(), "segment ", segment.name(), " left no way back");
  run->input = std::move(input);
  run->output = torch::autograd::impl::gradient_edge(output);
  return output.detach();
}

at::Tensor run_backward(SegmentRun run, const at::Tensor& dy) {
  // The engine may run nodes on its own threads only for CUDA; rank threads that share a device would block there.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  torch::autograd::Engine::get_default_engine().execute({std::move(run.output)}, {dy}, /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true, {});
  return run.input.defined() ? run.input.grad() : at::Tensor();
}

}  // namespace metroplex::nn

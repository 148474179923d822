#include "nn/segment.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "base/error.h"
#include "comm/autograd_node.h"

namespace metroplex::nn {
namespace {

// The same values as a new root, whose gradient goes to `dx`. A leaf would keep the values until its backward.
at::Tensor cut(const at::Tensor& x, const std::shared_ptr<at::Tensor>& dx) {
  return comm::attach(x.variable_data(), {}, [dx](const at::Tensor& gradient) -> comm::Gradients {
    *dx = gradient;
    return {};
  });
}

}  // namespace

at::Tensor run_forward(Segment& segment, const at::Tensor& x, const Microbatch& batch, SegmentRun* run,
                       ActivationStore* store) {
  if (run == nullptr) {
    const at::NoGradGuard no_grad;
    return segment.forward(x, batch);
  }
  const at::AutoGradMode with_grad(true);
  if (x.defined()) run->dx = std::make_shared<at::Tensor>();
  if (store != nullptr) store->begin();
  const at::Tensor output = segment.forward(x.defined() ? cut(x, run->dx) : x, batch);
  MPX_ASSERT(output.requires_grad(), "segment ", segment.name(), " left no way back");
  run->output = torch::autograd::impl::gradient_edge(output);
  if (store != nullptr) run->saved = store->end();
  return output.detach();
}

at::Tensor run_backward(SegmentRun run, const at::Tensor& dy) {
  // The engine may run nodes on its own threads only for CUDA; rank threads that share a device would block there.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  run.saved.restore();
  torch::autograd::Engine::get_default_engine().execute({std::move(run.output)}, {dy}, /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true, {});
  return run.dx ? std::move(*run.dx) : at::Tensor();
}

}  // namespace metroplex::nn

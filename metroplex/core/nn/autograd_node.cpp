#include "nn/autograd_node.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "base/error.h"

namespace metroplex::nn {
namespace {

class ClosureNode final : public torch::autograd::Node {
 public:
  ClosureNode(Backward backward, MissingGradient missing) : backward_(std::move(backward)), missing_(missing) {}
  void release_variables() override { backward_ = nullptr; }

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    MPX_ASSERT(backward_, "backward ran twice through the same node");
    if (!gradients.at(0).defined() && missing_ == MissingGradient::skip) return Gradients(num_outputs());
    return backward_(gradients.at(0));
  }

 private:
  Backward backward_;
  MissingGradient missing_;
};

}  // namespace

at::Tensor attach(at::Tensor out, const std::vector<at::Tensor>& inputs, Backward backward, MissingGradient missing) {
  if (!at::GradMode::is_enabled()) return out;
  torch::autograd::edge_list edges;
  for (const at::Tensor& input : inputs) {
    edges.push_back(input.defined() && input.requires_grad() ? torch::autograd::impl::gradient_edge(input)
                                                             : torch::autograd::Edge());
  }
  std::shared_ptr<torch::autograd::Node> node(new ClosureNode(std::move(backward), missing),
                                              torch::autograd::deleteNode);
  node->set_next_edges(std::move(edges));
  torch::autograd::set_history(out, node);
  return out;
}

void keep_gradient_type(const at::Tensor& x) {
  if (x.grad_fn()) x.grad_fn()->mutable_input_metadata(x.output_nr()).set_grad_dtype(std::nullopt);
}

}  // namespace metroplex::nn

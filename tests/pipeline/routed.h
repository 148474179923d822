// A block of two segments with the border features of a mixture of experts: an integer value, a second output that
// may stay unread, a loss term, and a parameter that some microbatches skip. Small enough to compute by hand.
#pragma once

#include "pipeline/stage.h"
#include "pipeline/toy.h"

namespace metroplex::test {

inline nn::Param routed_param(const std::string& name, double first) {
  nn::Param param;
  param.name = name;
  param.global_shape = param.local_shape = {kToyWidth};
  param.data = at::arange(1, kToyWidth + 1, at::kDouble) * 0.25 + first;
  param.main_grad = at::zeros_like(param.data);
  return param;
}

// x * param, with the parameter's gradient.
inline at::Tensor scaled(const at::Tensor& x, nn::Param& param) {
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = x.detach() * param.data;
  }
  return nn::attach(out, {x}, [&param, kept = x.detach()](const at::Tensor& dy) -> nn::Gradients {
    const at::NoGradGuard no_grad;
    param.accumulate([&](at::Tensor& grad) { grad.add_((kept * dy).sum(at::IntArrayRef{0, 1})); });
    return {dy * param.data};
  });
}

// hidden' = hidden * a; choice = index of the range (of three) that contains |hidden| of a token; weight = hidden *
// b, whose squares are the loss term "balance".
class RouterSegment final : public nn::Segment {
 public:
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>& params) override { params.insert(params.end(), {&a, &b}); }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    const at::Tensor x = in.tensor(nn::kHiddenStates), weight = scaled(x, b);
    context.terms.push_back({"balance", weight.square().sum()});
    nn::Values out(nn::kHiddenStates, scaled(x, a));
    out.add("choice", x.detach().sum(-1).abs().remainder(3).to(at::kLong));
    return out.add("weight", weight);
  }
  nn::Param a = routed_param("a", 0.5), b = routed_param("b", -0.5);

 private:
  std::string name_ = "router";
};

// y = (hidden + weight) * c * choice, or without weight and c in microbatches of even number.
class ExpertSegment final : public nn::Segment {
 public:
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>& params) override { params.push_back(&c); }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    const at::Tensor choice = in.tensor("choice").unsqueeze(-1).to(at::kDouble) + 1;
    at::Tensor y = in.tensor(nn::kHiddenStates);
    if (batch_index(context.batch) % 2 == 1) y = scaled(y + in.tensor("weight"), c);
    return {nn::kHiddenStates, y * choice};
  }
  nn::Param c = routed_param("c", 1);

 private:
  std::string name_ = "expert";
};

// Tokens as hidden states, without parameters; and the sum of squares as the loss.
class SourceSegment final : public nn::Segment {
 public:
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>& params) override { params.push_back(&scale); }
  nn::Values forward(const nn::Values&, nn::SegmentContext& context) override {
    const at::Tensor tokens = context.batch.tokens.t().unsqueeze(-1).to(at::kDouble).expand({-1, -1, kToyWidth});
    return {nn::kHiddenStates, scaled(tokens.contiguous(), scale)};
  }
  nn::Param scale = routed_param("scale", 0.125);

 private:
  std::string name_ = "source";
};

class SquaresSegment final : public nn::Segment {
 public:
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>&) override {}
  nn::Values forward(const nn::Values& in, nn::SegmentContext&) override {
    return {nn::kLoss, in.tensor(nn::kHiddenStates).square().sum()};
  }

 private:
  std::string name_ = "squares";
};

// Source, router | expert, squares: stage `stage` of `stages` (1 or 2).
inline nn::Blocks routed_stage(int stage, int stages) {
  nn::Blocks blocks;
  if (stage == 0) {
    blocks.push_back(one_segment(std::make_unique<SourceSegment>()));
    blocks.push_back(one_segment(std::make_unique<RouterSegment>(), true));
  }
  if (stage + 1 == stages) {
    blocks.push_back(one_segment(std::make_unique<ExpertSegment>(), true));
    blocks.push_back(one_segment(std::make_unique<SquaresSegment>()));
  }
  return blocks;
}

inline pipeline::BorderShape routed_border(const std::vector<nn::Microbatch>& batches, bool variable) {
  const int64_t s = batches[0].tokens.size(1), b = batches[0].tokens.size(0);
  return {{{nn::kHiddenStates, {s, b, kToyWidth}, at::kDouble},
           {"choice", {s, b}, at::kLong},
           {"weight", {s, b, kToyWidth}, at::kDouble}},
          variable};
}

inline nn::Block routed_block() {
  nn::Block block{"routed", true, {}};
  block.segments.push_back(std::make_unique<RouterSegment>());
  block.segments.push_back(std::make_unique<ExpertSegment>());
  return block;
}

inline at::Tensor routed_input() {
  return (at::arange(8 * kToyWidth, at::kDouble) * 0.37).sin().view({4, 2, kToyWidth});
}

}  // namespace metroplex::test

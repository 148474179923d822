// A pipeline small enough to compute by hand: layer i multiplies by w_i, the first one reads the tokens, the last one
// computes the loss sum(mask * y^2). Every rank has the whole model's weights, so one rank is the reference for all.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nn/autograd_node.h"
#include "comm/collectives.h"
#include "pipeline/executor.h"
#include "plan/schedules/registry.h"
#include "plan/verify.h"

namespace metroplex::test {

constexpr int64_t kToyLayers = 8, kToyWidth = 3;

class ToyLayer final : public nn::Segment {
 public:
  explicit ToyLayer(int64_t layer, std::function<void(const nn::Microbatch&)> on_forward = {})
      : name_("layer " + std::to_string(layer)), layer_(layer), on_forward_(std::move(on_forward)) {
    param_.name = name_;
    param_.global_shape = {kToyWidth};
    param_.data = at::arange(1, kToyWidth + 1, at::kDouble) * 0.125 + 0.5 + 0.0625 * static_cast<double>(layer);
    param_.main_grad = at::zeros_like(param_.data);
  }

  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>& params) override { params.push_back(&param_); }

  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    const nn::Microbatch& batch = context.batch;
    const at::Tensor x_sbh = layer_ == 0 ? at::Tensor() : in.tensor(nn::kHiddenStates);
    if (on_forward_) on_forward_(batch);
    const at::Tensor tokens = batch.tokens.t().unsqueeze(-1).to(at::kDouble).contiguous();
    const at::Tensor x = layer_ == 0 ? tokens : x_sbh.detach(), y = x * param_.data;
    const bool last = layer_ + 1 == kToyLayers;
    const at::Tensor mask = last ? batch.loss_mask.t().unsqueeze(-1) : at::Tensor();
    const at::Tensor squared = last ? y : at::Tensor();  // an output must not be held by its own backward
    const std::vector<at::Tensor> inputs = layer_ == 0 ? std::vector<at::Tensor>{} : std::vector<at::Tensor>{x_sbh};
    const auto backward = [this, x, squared, mask](const at::Tensor& dout) -> nn::Gradients {
      const at::NoGradGuard no_grad;
      const at::Tensor dy = mask.defined() ? 2.0 * dout * mask * squared : dout;
      param_.accumulate([x, dy](at::Tensor& grad) { grad.add_((x * dy).sum(at::IntArrayRef{0, 1})); });
      if (layer_ == 0) return {};
      return {dy * param_.data};
    };
    return {last ? nn::kLoss : nn::kHiddenStates, nn::attach(last ? (mask * y * y).sum() : y, inputs, backward)};
  }

 private:
  std::string name_;
  int64_t layer_;
  std::function<void(const nn::Microbatch&)> on_forward_;
  nn::Param param_;
};

inline nn::Block one_segment(std::unique_ptr<nn::Segment> segment, bool is_layer = false) {
  nn::Block block{segment->name(), is_layer, {}};
  block.segments.push_back(std::move(segment));
  return block;
}

// Index in toy_batches().
inline int64_t batch_index(const nn::Microbatch& batch) { return batch.counters.samples[0].item<int64_t>(); }

// With `growing` each microbatch is longer than the previous one and may have another number of samples.
inline std::vector<nn::Microbatch> toy_batches(int count, bool growing = false) {
  std::vector<nn::Microbatch> batches;
  for (int m = 0; m < count; ++m) {
    const int64_t s = growing ? 2 + m : 4, b = growing ? 2 + m % 3 : 2;
    nn::Microbatch batch;
    batch.tokens = (at::arange(b * s, at::kLong).view({b, s}) * 5 + 3 * m) % 11 - 4;
    batch.loss_mask = (at::arange(b * s, at::kDouble).view({b, s}) + m).remainder(3).sign();
    batch.mask_sum = batch.loss_mask.sum().item<double>();
    batch.counters.samples = at::full({b}, m, at::kLong);
    batches.push_back(std::move(batch));
  }
  return batches;
}

inline at::Tensor toy_factors(int count) { return at::arange(2, count + 2, at::kDouble).reciprocal(); }

struct ToyStages {
  std::vector<std::unique_ptr<pipeline::Stage>> stages;
  std::vector<nn::Param*> params;
  std::vector<int64_t> layers;  // of params

  ToyStages(int pp, int chunks, int rank, const std::function<void(const nn::Microbatch&)>& on_forward = {})
      : ToyStages(plan::StagePlacement{pp, chunks}, rank, on_forward) {}
  // The layers of pipeline rank `rank`.
  ToyStages(const plan::StagePlacement& placement, int rank,
            const std::function<void(const nn::Microbatch&)>& on_forward = {}) {
    for (int chunk = 0; chunk < placement.chunks; ++chunk) {
      nn::Blocks blocks;
      const int64_t stage = placement.stage_of({rank, chunk}), num_stages = placement.stages();
      for (int64_t layer = kToyLayers * stage / num_stages; layer < kToyLayers * (stage + 1) / num_stages; ++layer) {
        layers.push_back(layer);
        blocks.push_back(one_segment(std::make_unique<ToyLayer>(layers.back(), on_forward)));
      }
      stages.push_back(std::make_unique<pipeline::Stage>(std::move(blocks)));
      for (nn::Param* param : stages.back()->params()) params.push_back(param);
    }
  }
  std::vector<pipeline::Stage*> pointers() const {
    std::vector<pipeline::Stage*> list;
    for (const auto& stage : stages) list.push_back(stage.get());
    return list;
  }
};

inline pipeline::BorderShape toy_border(const std::vector<nn::Microbatch>& batches, bool variable) {
  return {{{nn::kHiddenStates, {batches[0].tokens.size(1), batches[0].tokens.size(0), kToyWidth}, at::kDouble}},
          variable};
}

struct ToyResult {
  at::Tensor losses;     // [microbatches]
  at::Tensor gradients;  // [layers, width]
};

inline ToyResult run_toy(const comm::Group& pp, const plan::PipelineTable& table,
                         const std::vector<nn::Microbatch>& batches, bool variable = false) {
  const plan::StagePlacement placement = table.placement();
  const ToyStages toy(placement, pp.index());
  pipeline::Executor executor(toy.pointers(), pp);
  const auto factors = table.forward_only ? at::Tensor() : toy_factors(table.num_microbatches);
  const auto losses = executor.run({table, batches, factors, toy_border(batches, variable)}).last;
  EXPECT_EQ(losses.size(), placement.place_of(placement.stages() - 1).rank == pp.index() ? batches.size() : 0u);
  EXPECT_EQ(executor.num_live(), 0u);
  ToyResult result{at::zeros({table.num_microbatches}, at::kDouble), at::zeros({kToyLayers, kToyWidth}, at::kDouble)};
  for (size_t m = 0; m < losses.size(); ++m) result.losses[static_cast<int64_t>(m)] = losses[m];
  for (size_t i = 0; i < toy.params.size(); ++i) result.gradients[toy.layers[i]] = toy.params[i]->main_grad;
  comm::all_reduce(result.losses, pp);
  comm::all_reduce(result.gradients, pp);
  return result;
}

// The plain formula: y = tokens * w_0 * ... * w_7, and the derivative of sum_m factor_m * sum(mask y^2).
inline ToyResult toy_by_formula(const std::vector<nn::Microbatch>& batches) {
  at::Tensor product = at::ones({kToyWidth}, at::kDouble);
  const ToyStages whole(1, 1, 0);
  for (const nn::Param* param : whole.params) product = product * param->data;
  const auto factors = toy_factors(static_cast<int>(batches.size()));
  ToyResult result{at::zeros({static_cast<int64_t>(batches.size())}, at::kDouble),
                   at::zeros({kToyLayers, kToyWidth}, at::kDouble)};
  for (size_t m = 0; m < batches.size(); ++m) {
    const double squares = (batches[m].loss_mask * batches[m].tokens.to(at::kDouble).square()).sum().item<double>();
    const at::Tensor by_channel = squares * product * product;
    result.losses[static_cast<int64_t>(m)] = by_channel.sum();
    for (int64_t layer = 0; layer < kToyLayers; ++layer) {
      result.gradients[layer] +=
          2.0 * factors[static_cast<int64_t>(m)] * by_channel / whole.params[static_cast<size_t>(layer)]->data;
    }
  }
  return result;
}

// Sums of a few dozen products: some ulp of the largest one.
inline void expect_same(const ToyResult& got, const ToyResult& expected, bool with_gradients = true) {
  EXPECT_TRUE(at::allclose(got.losses, expected.losses, 1e-13, 0.0)) << got.losses << expected.losses;
  const at::Tensor gradients = with_gradients ? expected.gradients : at::zeros_like(expected.gradients);
  EXPECT_TRUE(at::allclose(got.gradients, gradients, 1e-13, 0.0)) << got.gradients << gradients;
}

struct ScheduleCase {
  const char* schedule;
  int pp, chunks, microbatches, group = 0;
  bool overlap = false;
};

inline plan::PipelineTable build_table(const ScheduleCase& test_case, bool forward_only) {
  plan::ScheduleRequest request;
  request.num_stages = test_case.pp;
  request.num_chunks = test_case.chunks;
  request.num_microbatches = test_case.microbatches;
  request.microbatch_group_size = test_case.group;
  request.forward_only = forward_only;
  request.overlap_p2p = test_case.overlap;
  plan::PipelineTable table = plan::build_schedule(test_case.schedule, request);
  plan::verify(table);
  return table;
}

}  // namespace metroplex::test

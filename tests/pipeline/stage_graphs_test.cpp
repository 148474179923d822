// Captured autograd regions of a stage: same bits, uses and loss terms as eager regions. Also checks values that pass
// through, and rejected captures.
#include "pipeline/stage_graphs.h"

#include <map>

#include "base/error.h"
#include "pipeline/cutter.h"
#include "pipeline/routed.h"

namespace metroplex::test::stage_graphs_test {
namespace {

using Counts = std::map<std::string, int>;

// Counts the notifications of each parameter's listeners.
struct UseCounts {
  Counts before, uses;
  std::string order;  // of uses
  explicit UseCounts(const std::vector<nn::Param*>& params) {
    for (nn::Param* param : params) {
      param->before_use.add("told", [this, param] { ++before[param->name]; });
      param->on_use.add("told", [this, param] {
        ++uses[param->name];
        order += param->name;
        EXPECT_GE(before[param->name], uses[param->name]) << param->name << ": used before it was reported";
      });
    }
  }
};

constexpr const char* kOther = "other";

// Swaps hidden and other, and multiplies other by w: one gradient passes through unchanged.
class CrossSegment final : public nn::Segment {
 public:
  CrossSegment(std::string name, double first) : w(routed_param(name + ".w", first)), name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>& params) override { params.push_back(&w); }
  nn::Values forward(const nn::Values& in, nn::SegmentContext&) override {
    nn::Values out(nn::kHiddenStates, in.tensor(kOther));
    return out.add(kOther, scaled(in.tensor(nn::kHiddenStates), w));
  }
  nn::Param w;

 private:
  std::string name_;
};

// hidden * w * (sum of the counters + 1); passes other through.
class CountedSegment final : public nn::Segment {
 public:
  CountedSegment(std::string name, double first) : w(routed_param(name + ".w", first)), name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>& params) override { params.push_back(&w); }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    const at::Tensor factor = context.batch.counters.samples.sum().to(at::kDouble) + 1;
    nn::Values out(nn::kHiddenStates, scaled(in.tensor(nn::kHiddenStates), w) * factor);
    return out.add(kOther, in.tensor(kOther));
  }
  nn::Param w;

 private:
  std::string name_;
};

// A captured, a captured, an eager and a captured region: blocks that count as layers are in scope.
nn::Blocks crossing_blocks() {
  nn::Blocks blocks;
  blocks.push_back(one_segment(std::make_unique<CountedSegment>("zeroth", 0.125), true));
  blocks.push_back(one_segment(std::make_unique<CrossSegment>("first", 0.5), true));
  blocks.push_back(one_segment(std::make_unique<CountedSegment>("between", 0.25)));
  blocks.push_back(one_segment(std::make_unique<CrossSegment>("second", -0.5), true));
  return blocks;
}

struct Outcome {
  std::vector<at::Tensor> tensors;  // results, gradients of inputs, gradients of parameters, loss terms
};

void expect_same_outcome(const Outcome& got, const Outcome& expected) {
  ASSERT_EQ(got.tensors.size(), expected.tensors.size());
  for (size_t i = 0; i < got.tensors.size(); ++i) EXPECT_TRUE(at::equal(got.tensors[i], expected.tensors[i])) << i;
}

nn::Microbatch batch_number(int64_t number) {
  nn::Microbatch batch = toy_batches(1)[0];
  batch.counters.samples.fill_(number);
  return batch;
}

at::Tensor make_values(int64_t number, double shift) {
  return (routed_input() + shift + static_cast<double>(number)).sin();
}

struct Pass {
  pipeline::StageRun run;
  nn::LossTerms terms;
  std::vector<at::Tensor> out;
};

void forward(pipeline::Stage& stage, Pass& pass, nn::Values in, int64_t number, int instance) {
  const nn::Microbatch batch = batch_number(number);
  for (const auto& [name, value] : stage.forward(std::move(in), batch, &pass.run, &pass.terms, instance))
    pass.out.push_back(value.tensor());
}

nn::Values crossing_values(int64_t number) {
  nn::Values in(nn::kHiddenStates, make_values(number, 0));
  return in.add(kOther, make_values(number, 1));
}

Outcome finish(pipeline::Stage& stage, Pass pass, nn::Gradients dy, double factor = 0.25) {
  Outcome outcome;
  for (const at::Tensor& out : pass.out) outcome.tensors.push_back(out.clone());
  for (nn::Param* param : stage.params()) param->main_grad.zero_();
  for (const at::Tensor& dx : stage.backward(std::move(pass.run), std::move(dy), at::full({}, factor, at::kDouble)))
    outcome.tensors.push_back(dx.clone());
  for (nn::Param* param : stage.params()) outcome.tensors.push_back(param->main_grad.clone());
  for (const nn::LossTerm& term : pass.terms) outcome.tensors.push_back(term.sum);
  return outcome;
}

Outcome cross(pipeline::Stage& stage, int64_t number, int instance) {
  Pass pass;
  forward(stage, pass, crossing_values(number), number, instance);
  return finish(stage, std::move(pass), {make_values(number, 2), make_values(number, 3)});
}

struct Captured {
  explicit Captured(nn::Blocks blocks) : device(graph::make_graph_device(at::kCPU)), stage(std::move(blocks)) {
    stage.enable_capture(instances, {{}, true});
  }
  std::unique_ptr<graph::GraphDevice> device;
  std::shared_ptr<pipeline::GraphInstances> instances = std::make_shared<pipeline::GraphInstances>(*device, at::kCPU);
  pipeline::Stage stage;
};

TEST(StageGraphs, HaveTheBitsAndTellTheUsesOfIslandsThatRunAsTheyAre) {
  pipeline::Stage plain(crossing_blocks());
  Captured graphs(crossing_blocks());
  UseCounts use_counts(graphs.stage.params());
  for (int64_t number = 0; number < 5; ++number) {
    SCOPED_TRACE(number);
    expect_same_outcome(cross(graphs.stage, number, 0), cross(plain, number, -1));
    const int times = static_cast<int>(number) + 1;
    const Counts each{{"first.w", times}, {"between.w", times}, {"second.w", times}, {"zeroth.w", times}};
    EXPECT_EQ(use_counts.uses, each);
    EXPECT_EQ(use_counts.before, each);
    EXPECT_EQ(use_counts.order, "second.wbetween.wfirst.wzeroth.w");
    use_counts.order.clear();
  }
  EXPECT_EQ(graphs.instances->sizes(false).graphs, 2 * 3);
  EXPECT_EQ(graphs.instances->sizes(true).graphs, 0);
  EXPECT_EQ(graphs.instances->sizes(false).pools.live, 0);
}

TEST(StageGraphs, AReplayDoesNotCallTheLayers) {
  int calls = 0;
  nn::Blocks blocks;
  blocks.push_back(one_segment(std::make_unique<ToyLayer>(1, [&](const nn::Microbatch&) { ++calls; }), true));
  Captured graphs(std::move(blocks));
  for (int64_t number = 0; number < 3; ++number) {
    Pass pass;
    forward(graphs.stage, pass, {nn::kHiddenStates, make_values(number, 0)}, number, 0);
    finish(graphs.stage, std::move(pass), {make_values(number, 1)});
  }
  EXPECT_EQ(calls, 1);
}

TEST(StageGraphs, MicrobatchesInFlightTakeAnInstanceEach) {
  pipeline::Stage plain(crossing_blocks());
  Captured graphs(crossing_blocks());
  const auto three_in_flight = [](pipeline::Stage& stage, int64_t first, bool captured) {
    std::vector<Pass> passes(3);
    for (int64_t i = 0; i < 3; ++i) {
      const int instance = captured ? static_cast<int>(i) : -1;
      forward(stage, passes[static_cast<size_t>(i)], crossing_values(first + i), first + i, instance);
    }
    Outcome all;
    for (int64_t i = 0; i < 3; ++i) {
      Outcome one = finish(stage, std::move(passes[static_cast<size_t>(i)]), {make_values(i, 2), make_values(i, 3)});
      all.tensors.insert(all.tensors.end(), one.tensors.begin(), one.tensors.end());
    }
    return all;
  };
  for (const int64_t first : {0, 3, 6})
    expect_same_outcome(three_in_flight(graphs.stage, first, true), three_in_flight(plain, first, false));
  EXPECT_EQ(graphs.instances->sizes(false).graphs, 3 * 2 * 3);
}

TEST(StageGraphs, EvaluationHasInstancesOfItsOwnWithoutBackward) {
  pipeline::Stage plain(crossing_blocks());
  Captured graphs(crossing_blocks());
  for (int64_t number = 0; number < 4; ++number) {
    cross(graphs.stage, number, 0);
    const nn::Microbatch batch = batch_number(number + 10);
    const nn::Values want = plain.forward(crossing_values(number + 10), batch, nullptr);
    for (const auto& [name, value] : graphs.stage.forward(crossing_values(number + 10), batch, nullptr, nullptr, 0))
      EXPECT_TRUE(at::equal(value.tensor(), want.tensor(name))) << name;
  }
  EXPECT_EQ(graphs.instances->sizes(false).graphs, 2 * 3);
  EXPECT_EQ(graphs.instances->sizes(true).graphs, 3);
}

// Two chunks of a rank alternate in one instance: they share its pool and its static inputs.
TEST(StageGraphs, ChunksShareAnInstance) {
  const auto layer = [](int64_t number) {
    nn::Blocks blocks;
    blocks.push_back(one_segment(std::make_unique<ToyLayer>(number), true));
    return blocks;
  };
  const auto pass = [](pipeline::Stage& stage, int64_t number, int instance) {
    Pass one;
    forward(stage, one, {nn::kHiddenStates, make_values(number, 0)}, number, instance);
    return finish(stage, std::move(one), {make_values(number, 1)});
  };
  pipeline::Stage plain_first(layer(1)), plain_second(layer(2));
  Captured first(layer(1));
  pipeline::GraphSizes alone;
  pipeline::Stage second(layer(2));
  second.enable_capture(first.instances, {{}, true});
  for (int64_t number = 0; number < 4; ++number) {
    SCOPED_TRACE(number);
    expect_same_outcome(pass(first.stage, number, 0), pass(plain_first, number, -1));
    if (number == 0) alone = first.instances->sizes(false);
    expect_same_outcome(pass(second, number + 10, 0), pass(plain_second, number + 10, -1));
  }
  const pipeline::GraphSizes both = first.instances->sizes(false);
  EXPECT_EQ(both.graphs, 2 * alone.graphs);
  EXPECT_EQ(both.pools.peak, alone.pools.peak);
  EXPECT_EQ(both.pools.reserved, alone.pools.reserved);
  EXPECT_EQ(both.static_inputs, alone.static_inputs);
  EXPECT_EQ(both.results, alone.results);
}

// Integers, an unread output and a loss term.
TEST(StageGraphs, LossTermsAreThoseOfTheirMicrobatch) {
  const auto blocks = [] {
    nn::Blocks blocks;
    blocks.push_back(one_segment(std::make_unique<RouterSegment>(), true));
    return blocks;
  };
  pipeline::Stage plain(blocks());
  Captured graphs(blocks());
  UseCounts use_counts(graphs.stage.params());
  std::vector<Outcome> got, want;
  for (int64_t number = 0; number < 3; ++number) {
    for (pipeline::Stage* stage : {&plain, &graphs.stage}) {
      Pass pass;
      forward(*stage, pass, {nn::kHiddenStates, make_values(number, 0)}, number, 0);
      EXPECT_EQ(pass.terms.size(), 1u);
      (stage == &plain ? want : got)
          .push_back(
              finish(*stage, std::move(pass), {make_values(number, 1), {}, {}}, 0.25 + static_cast<double>(number)));
    }
  }
  for (size_t i = 0; i < got.size(); ++i) expect_same_outcome(got[i], want[i]);
  EXPECT_EQ(use_counts.uses, (Counts{{"a", 3}, {"b", 3}}));
}

// The memory report, or another microbatch between the segments: nothing is replayed then.
TEST(StageGraphs, WhoCutsEveryBorderGetsIslandsThatRunAsTheyAre) {
  NoopObserver silent;
  pipeline::Stage plain(crossing_blocks());
  Captured graphs(crossing_blocks());
  for (int64_t number = 0; number < 6; ++number) {
    if (number == 1 || number == 4) graphs.stage.add_observer("silent", silent, true);
    expect_same_outcome(cross(graphs.stage, number, 0), cross(plain, number, -1));
    EXPECT_EQ(graphs.instances->sizes(false).graphs, 6);
    if (number == 1 || number == 4) graphs.stage.remove_observer("silent");
  }
}

TEST(StageGraphs, AMicrobatchOfAnotherFormIsCapturedAnew) {
  pipeline::Stage plain(crossing_blocks());
  Captured graphs(crossing_blocks());
  const auto run = [](pipeline::Stage& stage, int64_t samples, int instance) {
    nn::Microbatch batch = batch_number(samples);
    batch.counters.samples = at::arange(samples, at::kLong);
    nn::Values in(nn::kHiddenStates, make_values(samples, 0).slice(1, 0, samples).contiguous());
    in.add(kOther, make_values(samples, 1).slice(1, 0, samples).contiguous());
    Pass pass;
    for (const auto& [name, value] : stage.forward(std::move(in), batch, &pass.run, &pass.terms, instance))
      pass.out.push_back(value.tensor());
    nn::Gradients dy;
    for (const at::Tensor& out : pass.out) dy.push_back(out.clone());
    return finish(stage, std::move(pass), std::move(dy));
  };
  for (const int64_t samples : {2, 2, 1, 1, 2, 1}) {
    SCOPED_TRACE(samples);
    expect_same_outcome(run(graphs.stage, samples, 0), run(plain, samples, -1));
    EXPECT_EQ(graphs.instances->sizes(false).graphs, 6);
  }
}

void expect_error(const std::function<void()>& work, const std::vector<std::string>& parts) {
  try {
    work();
    ADD_FAILURE() << "no error";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.room(), "cuda graph");
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << part << " is not in: " << error.what();
  }
}

TEST(StageGraphs, ValuesOfAnotherFormThanTheMicrobatchSaysAreRefusedByName) {
  Captured graphs(crossing_blocks());
  cross(graphs.stage, 0, 0);
  Pass pass;
  nn::Values in(nn::kHiddenStates, make_values(0, 0).slice(0, 0, 3).contiguous());
  in.add(kOther, make_values(0, 1));
  expect_error([&] { forward(graphs.stage, pass, in, 0, 0); },
               {"zeroth", "hidden_states", "Double [4, 2, 3]", "Double [3, 2, 3]", "train.cuda_graph_modules"});
}

TEST(StageGraphs, WhatTheHostReadsIsRefusedWhileItIsCaptured) {
  nn::Blocks blocks;
  blocks.push_back(routed_block());
  Captured graphs(std::move(blocks));
  Pass pass;
  expect_error(
      [&] {
        forward(graphs.stage, pass, {nn::kHiddenStates, make_values(0, 0)}, 0, 0);
      },
      {"forward of router", "cannot be captured", "the host", "train.cuda_graph_modules"});
}

// A segment with the traits of the test.
class TraitsSegment final : public nn::Segment {
 public:
  TraitsSegment(std::string name, nn::SegmentTraits traits, nn::Param& param)
      : name_(std::move(name)), traits_(std::move(traits)), param_(param) {}
  const std::string& name() const override { return name_; }
  void collect_params(std::vector<nn::Param*>& params) override { params.push_back(&param_); }
  nn::Values forward(const nn::Values& in, nn::SegmentContext&) override { return in; }
  nn::SegmentTraits traits() const override { return traits_; }

 private:
  std::string name_;
  nn::SegmentTraits traits_;
  nn::Param& param_;
};

TEST(GraphScope, WhatCannotBeCapturedIsRefusedByNameWithTheReason) {
  nn::Param param = routed_param("table", 0);
  TraitsSegment reads("reading", {.needs_host = true}, param), grows("growing", {.static_shapes = false}, param),
      fine("fine", {}, param);
  const auto refused = [](nn::Segment& segment, const std::vector<std::string>& parts) {
    expect_error([&] { pipeline::check_capturable(nn::make_region({&segment})); }, parts);
  };
  refused(reads, {"segment reading", "the host reads", "leave it out of train.cuda_graph_modules"});
  refused(grows, {"segment growing", "shapes", "train.cuda_graph_impl: none"});
  param.uses_per_microbatch = 2;
  pipeline::check_capturable(nn::make_region({&fine}));
  param.data = param.data.to(at::kHalf);
  refused(fine, {"parameter table", "fp16"});
  pipeline::check_capturable(nn::make_region({&fine, &fine}));
}

TEST(GraphScope, NeighboursInScopeAreOneIslandAndModulesOrWholeLayersSayWhatIs) {
  using enum config::CudaGraphModule;
  nn::Param param = routed_param("p", 0);
  const auto blocks = [&] {
    nn::Blocks blocks;
    blocks.push_back(one_segment(std::make_unique<TraitsSegment>("embedding", nn::SegmentTraits(), param)));
    blocks.push_back({"layer", true, {}});
    const std::vector<std::optional<config::CudaGraphModule>> modules{attn, moe_router, std::nullopt, mlp, attn};
    for (const auto& module : modules)
      blocks.back().segments.push_back(
          std::make_unique<TraitsSegment>("part", nn::SegmentTraits{.module = module}, param));
    blocks.push_back(one_segment(std::make_unique<TraitsSegment>("top", nn::SegmentTraits{.module = attn}, param)));
    return blocks;
  };
  // One letter per segment: captured or not; a bar between autograd regions.
  const auto cuts = [&](pipeline::GraphScope scope, bool everywhere = false) {
    const auto device = graph::make_graph_device(at::kCPU);
    pipeline::Stage stage(blocks());
    stage.enable_capture(std::make_shared<pipeline::GraphInstances>(*device, at::kCPU), scope);
    std::string text;
    int graphs = 0;
    NoopObserver noop_observer;
    if (everywhere) stage.add_observer("cuts", noop_observer, true);
    for (const auto& place : stage.regions().entries) {
      text += text.empty() ? "" : "|";
      text += std::string(place.region.segments.size(), place.graph >= 0 ? 'c' : '-');
      if (place.graph >= 0) { EXPECT_EQ(place.graph, graphs++); }
    }
    EXPECT_EQ(everywhere ? 0U : stage.captured_regions().size(), static_cast<size_t>(graphs));
    return text;
  };
  EXPECT_EQ(cuts({}), "-|-----|-");
  EXPECT_EQ(cuts({{}, true}), "-|ccccc|-");
  EXPECT_EQ(cuts({{attn}, false}), "-|c|---|c|c");
  EXPECT_EQ(cuts({{attn, mlp}, false}), "-|c|--|cc|c");
  EXPECT_EQ(cuts({{moe}, false}), "-|-|c|---|-");
  EXPECT_EQ(cuts({{attn, moe_router, mlp}, false}), "-|cc|-|cc|c");
  EXPECT_EQ(cuts({{attn}, false}, true), "-|-|-|-|-|-|-");
}

}  // namespace
}  // namespace metroplex::test::stage_graphs_test

// Lists of values, loss terms and unreached parameters through autograd regions, stages and pipelines; listeners.
#include <map>

#include "base/error.h"
#include "pipeline/cutter.h"
#include "pipeline/routed.h"
#include "support/run_ranks.h"

namespace metroplex::test::regions_ranks_test {
namespace {

// How often each parameter counts a use.
struct Uses {
  std::map<std::string, int> counts;
  explicit Uses(const std::vector<nn::Param*>& params) {
    for (nn::Param* param : params) param->on_use.add("uses", [this, param] { ++counts[param->name]; });
  }
};

struct Outcome {
  at::Tensor y, dx, gradients;
  nn::LossTerms terms;
};

// One routed block as a stage; dy is the input again.
Outcome run_stage(pipeline::Stage& stage, int64_t step, double factor) {
  nn::Microbatch batch = toy_batches(1)[0];
  batch.counters.samples.fill_(step);
  const at::Tensor x = routed_input();
  pipeline::StageRun run;
  Outcome outcome;
  for (nn::Param* param : stage.params()) param->main_grad.zero_();
  outcome.y = stage.forward({nn::kHiddenStates, x}, batch, &run, &outcome.terms).tensor(nn::kHiddenStates);
  outcome.dx = stage.backward(std::move(run), {x}, at::full({}, factor, at::kDouble)).at(0);
  std::vector<at::Tensor> gradients;
  for (nn::Param* param : stage.params()) gradients.push_back(param->main_grad.clone());
  outcome.gradients = at::stack(gradients);
  return outcome;
}

nn::Blocks one_block() {
  nn::Blocks blocks;
  blocks.push_back(routed_block());
  return blocks;
}

void expect_same_outcome(const Outcome& got, const Outcome& expected) {
  EXPECT_TRUE(at::equal(got.y, expected.y));
  EXPECT_TRUE(at::equal(got.dx, expected.dx));
  EXPECT_TRUE(at::equal(got.gradients, expected.gradients));
  ASSERT_EQ(got.terms.size(), expected.terms.size());
  for (size_t i = 0; i < got.terms.size(); ++i) EXPECT_TRUE(at::equal(got.terms[i].sum, expected.terms[i].sum));
}

TEST(Islands, IntegersAndUnreadOutputsTakeNoGradientAndEveryParameterCountsOnce) {
  RouterSegment router;
  const nn::Region region = nn::make_region({&router});
  Uses uses({&router.a, &router.b});
  const nn::Microbatch batch = toy_batches(1)[0];
  const at::Tensor x = routed_input();
  nn::RegionRun run;
  const nn::Values out = nn::run_forward(region, {nn::kHiddenStates, x}, {batch}, &run);
  EXPECT_FALSE(run.outputs.at(1).is_valid()) << "integers have no way back";
  EXPECT_EQ(out.tensor("choice").scalar_type(), at::kLong);
  run.terms.clear();  // nothing reaches b
  const nn::Gradients dx = nn::run_backward(std::move(run), {x, {}, {}}, at::ones({}));
  EXPECT_TRUE(at::allclose(dx.at(0), x * router.a.data, 1e-15, 0.0));
  EXPECT_TRUE(at::allclose(router.a.main_grad, x.square().sum(at::IntArrayRef{0, 1}), 1e-14, 0.0));
  EXPECT_EQ(router.b.main_grad.abs().max().item<double>(), 0.0);
  EXPECT_EQ(uses.counts, (std::map<std::string, int>{{"a", 1}, {"b", 1}}));
}

TEST(Islands, WithoutAnyGradientNothingRunsAndUsesStillCount) {
  RouterSegment router;
  ExpertSegment expert;
  const nn::Region region = nn::make_region({&router, &expert});
  Uses uses({&router.a, &router.b, &expert.c});
  const nn::Microbatch batch = toy_batches(1)[0];
  nn::RegionRun run;
  nn::run_forward(region, {nn::kHiddenStates, routed_input()}, {batch}, &run);
  run.terms.clear();
  const nn::Gradients dx = nn::run_backward(std::move(run), {at::Tensor()}, at::ones({}));
  EXPECT_FALSE(dx.at(0).defined());
  EXPECT_EQ(uses.counts, (std::map<std::string, int>{{"a", 1}, {"b", 1}, {"c", 1}}));
}

// The order is the same on every rank. Uses are counted in this order if no backward pass orders them.
TEST(Islands, ParametersAreInTheOrderInWhichTheyAreTold) {
  struct Listed final : nn::Segment {
    const std::string& name() const override { return name_; }
    void collect_params(std::vector<nn::Param*>& list) override {
      list.insert(list.end(), {&params[1], &params[2], &params[0], &params[2]});
    }
    nn::Values forward(const nn::Values& in, nn::SegmentContext&) override { return in; }
    nn::Param params[3];
    std::string name_ = "listed";
  } listed;
  const nn::Region region = nn::make_region({&listed, &listed});
  ASSERT_EQ(region.params.size(), 3u);
  const int order[] = {1, 2, 0};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(region.params[i].param, &listed.params[order[i]]);
    EXPECT_EQ(region.params[i].times, i == 1 ? 4 : 2);  // each time that it is listed
  }
}

TEST(Islands, AUseIsCompleteAtItsLastCallOrAtTheEndOfTheIsland) {
  nn::Param param = routed_param("p", 0);
  param.calls_per_use = 2;
  int uses = 0;
  param.on_use.add("test", [&] { ++uses; });
  const auto call = [&] { param.accumulate([](at::Tensor& grad) { grad.add_(1); }); };
  param.begin_backward();
  call();
  EXPECT_EQ(uses, 0);
  call();
  EXPECT_EQ(uses, 1);
  param.end_backward(1);
  EXPECT_EQ(uses, 1);
  param.begin_backward();
  call();
  param.end_backward(1);
  EXPECT_EQ(uses, 2) << "one of two calls was made";
  param.begin_backward();
  for (int i = 0; i < 3; ++i) call();
  EXPECT_THROW(param.end_backward(1), std::logic_error);
}

TEST(Islands, ASharedParameterIsUsedByEverySegmentThatListsIt) {
  RouterSegment router;
  ExpertSegment expert;
  nn::Block block{"twice", false, {}};
  struct RepeatedSegment final : nn::Segment {
    explicit RepeatedSegment(RouterSegment& inner) : inner(inner) {}
    const std::string& name() const override { return inner.name(); }
    void collect_params(std::vector<nn::Param*>& params) override { inner.collect_params(params); }
    nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
      return inner.forward({nn::kHiddenStates, in.tensor(nn::kHiddenStates)}, context);
    }
    RouterSegment& inner;
  };
  block.segments.push_back(std::make_unique<RepeatedSegment>(router));
  block.segments.push_back(std::make_unique<RepeatedSegment>(router));
  nn::Blocks blocks;
  blocks.push_back(std::move(block));
  nn::count_uses({&blocks});
  EXPECT_EQ(router.a.uses_per_microbatch, 2);
  Uses uses(nn::list_params(blocks));
  pipeline::Stage stage(std::move(blocks));
  const nn::Microbatch batch = toy_batches(1)[0];
  pipeline::StageRun run;
  stage.forward({nn::kHiddenStates, routed_input()}, batch, &run);
  stage.backward(std::move(run), {at::Tensor(), {}, {}}, at::ones({}));
  EXPECT_EQ(uses.counts, (std::map<std::string, int>{{"a", 2}, {"b", 2}}))
      << "a is reached once, by the first term's x";
}

TEST(LossTerms, EnterWithTheFactorAndCountOnceUnderRecompute) {
  pipeline::Stage plain(one_block());
  const Outcome without = run_stage(plain, 0, 0), with = run_stage(plain, 0, 0.25);
  const at::Tensor x = routed_input(), b = plain.params()[1]->data;
  ASSERT_EQ(with.terms.size(), 1u);
  EXPECT_EQ(with.terms[0].name, "balance");
  EXPECT_FALSE(with.terms[0].sum.requires_grad());
  EXPECT_DOUBLE_EQ(with.terms[0].sum.item<double>(), (x * b).square().sum().item<double>());
  EXPECT_EQ(without.gradients[1].abs().max().item<double>(), 0.0);
  const at::Tensor expected = 0.25 * 2 * (x.square() * b).sum(at::IntArrayRef{0, 1});
  EXPECT_TRUE(at::allclose(with.gradients[1], expected, 1e-14, 0.0));
  EXPECT_TRUE(at::allclose(with.dx - without.dx, 0.25 * 2 * x * b * b, 1e-12, 1e-14));
  pipeline::StageSaving saving;
  saving.recomputed = {{0, 1}};
  pipeline::Stage again(one_block(), saving);
  for (const int64_t step : {0, 1}) expect_same_outcome(run_stage(again, step, 0.25), run_stage(plain, step, 0.25));
}

// Records its name around every region.
struct NamedObserver final : nn::StageObserver {
  NamedObserver(std::string name, std::string& text) : name(std::move(name)), text(text) {}
  void before(const nn::RegionEvent& event) override {
    text += (event.enters_block ? " [" : " (") + name + std::to_string(event.segment);
  }
  void after(const nn::RegionEvent& event) override { text += " " + name + (event.leaves_block ? "]" : ")"); }
  std::string name;
  std::string& text;
};

TEST(Listeners, AreToldInOrderAndInReverseAndWhoOnlyLooksLeavesIslandsWhole) {
  std::string text;
  NamedObserver speaker("a", text), b("b", text);
  pipeline::Stage stage(one_block());
  const Outcome expected = run_stage(stage, 1, 0.5);
  stage.add_observer("a", speaker);
  stage.add_observer("b", b);
  EXPECT_EQ(stage.regions().entries.size(), 1u);
  expect_same_outcome(run_stage(stage, 1, 0.5), expected);
  EXPECT_EQ(text, " [a0 [b0 b] a] [a0 [b0 b] a]");
  EXPECT_THROW(stage.add_observer("b", b), std::logic_error);
  stage.remove_observer("b");
  stage.add_observer("b", b, true);
  EXPECT_EQ(stage.regions().entries.size(), 2u);
  text.clear();
  expect_same_outcome(run_stage(stage, 1, 0.5), expected);
  EXPECT_EQ(text, " [a0 [b0 b) a) (a1 (b1 b] a] [a1 [b1 b) a) (a0 (b0 b] a]");
  stage.remove_observer("b");
  EXPECT_EQ(stage.regions().entries.size(), 1u);
}

// The repeated forward of a chunk that begins at the second segment enters the block, so that ZeRO gathers its
// parameters.
TEST(Listeners, ARecomputedChunkEntersItsFirstBlock) {
  pipeline::StageSaving saving;
  saving.recomputed = {{.begin = 0, .end = 1, .segment = 1}};
  pipeline::Stage stage(one_block(), saving);
  std::string text;
  NamedObserver speaker("a", text);
  stage.add_observer("a", speaker);
  run_stage(stage, 1, 0.5);
  EXPECT_EQ(text, " [a0 a) (a1 a] [a1 a] [a1 a) (a0 a]");
}

TEST(Listeners, AUseIsToldInReverseOrderOfJoining) {
  nn::Param param = routed_param("p", 0);
  std::string text;
  for (const char* name : {"1", "2", "3"}) {
    param.before_use.add(name, [&text, name] { text += std::string("<") + name; });
    param.on_use.add(name, [&text, name] { text += std::string(">") + name; });
  }
  param.on_use.remove("2");
  param.accumulate([&](at::Tensor&) { text += "+"; });
  EXPECT_EQ(text, "<1<2<3+>3>1");
}

TEST(Cursor, EverySegmentBorderCutGivesTheBitsOfTheUncutStage) {
  for (const bool recompute : {false, true}) {
    pipeline::StageSaving saving;
    if (recompute) saving.recomputed = {{0, 1}};
    pipeline::Stage stage(one_block(), saving);
    for (const int64_t step : {0, 1}) {
      const Outcome whole = run_stage(stage, step, 0.5);
      NoopObserver noop_observer;
      stage.add_observer("cuts", noop_observer, true);
      expect_same_outcome(run_stage(stage, step, 0.5), whole);
      stage.remove_observer("cuts");
    }
  }
}

// Results of all microbatches of a step, summed over the pipeline.
struct Routed {
  at::Tensor losses, terms, gradients;  // gradients: scale, a, b, c
};

Routed run_pipeline(const comm::Group& pp, const std::string& schedule, const std::vector<nn::Microbatch>& batches,
                    bool variable) {
  const int ranks = pp.size();
  const plan::PipelineTable table =
      build_table({schedule.c_str(), ranks, 1, static_cast<int>(batches.size())}, false);
  pipeline::Stage stage(routed_stage(pp.index(), ranks));
  pipeline::Executor executor({&stage}, pp);
  const auto count = static_cast<int64_t>(batches.size());
  const pipeline::PipelineOutput out =
      executor.run({table, batches, toy_factors(static_cast<int>(count)), routed_border(batches, variable)});
  EXPECT_EQ(executor.num_live(), 0u);
  EXPECT_EQ(executor.border_bytes(), 0);
  Routed result{at::zeros({count}, at::kDouble), at::zeros({count}, at::kDouble),
                at::zeros({4, kToyWidth}, at::kDouble)};
  for (int64_t m = 0; m < count; ++m) {
    if (!out.last.empty()) result.losses[m] = out.last[static_cast<size_t>(m)];
    EXPECT_EQ(out.terms[static_cast<size_t>(m)].size(), pp.first() ? 1u : 0u);
    for (const nn::LossTerm& term : out.terms[static_cast<size_t>(m)]) result.terms[m] += term.sum;
  }
  for (nn::Param* param : stage.params()) {
    const std::string names[] = {"scale", "a", "b", "c"};
    result.gradients[std::find(names, names + 4, param->name) - names] = param->main_grad;
  }
  for (const at::Tensor& tensor : {result.losses, result.terms, result.gradients}) comm::all_reduce(tensor, pp);
  return result;
}

// Even microbatches do not read `weight`: its gradient is sent back as zeros. Integers are not sent back.
TEST(ExecutorBorders, SeveralValuesAndIntegersCrossAndOneRankIsTheReference) {
  for (const bool variable : {false, true}) {
    const auto batches = toy_batches(4, variable);
    const Routed one = run_pipeline({}, "1f1b", batches, variable);
    EXPECT_GT(one.terms.min().item<double>(), 0.0);
    for (int64_t i = 0; i < 4; ++i) EXPECT_GT(one.gradients[i].abs().max().item<double>(), 0.0);
    const auto expect = [&](const Routed& got) {
      EXPECT_TRUE(at::equal(got.losses, one.losses));
      EXPECT_TRUE(at::equal(got.terms, one.terms));
      EXPECT_TRUE(at::allclose(got.gradients, one.gradients, 1e-14, 0.0)) << got.gradients << one.gradients;
    };
    run_ranks(2, {.pp = 2}, [&](const comm::World& world) {
      for (const char* schedule : {"1f1b", "gpipe"}) {
        SCOPED_TRACE(schedule);
        expect(run_pipeline(world.groups().pp, schedule, batches, variable));
      }
    });
  }
}

}  // namespace
}  // namespace metroplex::test::regions_ranks_test

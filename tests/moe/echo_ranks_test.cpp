// A layer with replicas of hot experts equals the layer without: outputs and all gradients, for every planner and
// every dispatcher that sends rows to ranks; with integers bit for bit.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "moe/echo_layer.h"
#include "plan/echo.h"
#include "support/poisoned.h"

namespace metroplex::test::echo_ranks_test {
namespace {

using namespace echo_layer;

// The rows of an expert are summed on several ranks, in at least fp32: the results are those of another order of some
// 100 additions. No replica value is rounded to the type of its weights.
void run_case(const Case& test_case, const std::vector<Form>& forms) {
  const config::Config plain_config = make_config(test_case, {}, false);
  comm::run_threads(
      test_case.ranks, topology::RankGrid(test_case.ranks, plain_config.parallel), {}, [&](const comm::World& world) {
        for (const Form& form : forms) {
          if (form.planner == EchoPlanner::binpack && test_case.slots > 1) continue;
          SCOPED_TRACE(test_case.text() + ", " + form.text());
          Layer plain(make_config(test_case, form, false), world, form.type),
              replicated(make_config(test_case, form, true), world, form.type);
          const Results got = run(replicated, test_case, form, world), expected = run(plain, test_case, form, world);
          ASSERT_EQ(got.tensors.size(), expected.tensors.size());
          const double rounding = form.type == at::kDouble ? 0x1p-53 : 0x1p-24;
          for (const auto& [name, tensor] : expected.tensors)
            EXPECT_LE(relative_difference(got.tensors.at(name), tensor), 100 * rounding) << name;
          if (form.one_region) continue;
          const at::Tensor rows = at::full({1}, got.replicated_rows, at::kLong);
          comm::all_reduce(rows, world.groups().world);
          EXPECT_GT(rows.item<int64_t>(), 0) << "nothing was cloned";
        }
      });
}

TEST(Echo, OfEveryPlannerIsTheLayerWithoutIt) {
  const NanFillGuard poisoned;
  for (const Case& test_case : kCases) {
    std::vector<Form> forms;
    for (const auto& planner : config::kWords<EchoPlanner>) {
      forms.push_back({.planner = planner.value, .one_region = false});
      forms.push_back({.planner = planner.value, .bias = true});
    }
    forms.push_back({.random = true, .one_region = false});
    run_case(test_case, forms);
  }
}

TEST(Echo, OverEveryDispatcherThatSendsRows) {
  const NanFillGuard poisoned;
  for (const Case& test_case : kCases) {
    run_case(test_case,
             {{.planner = EchoPlanner::exact, .rows = TokenDispatcher::static_buffer, .room = 4, .one_region = false},
              {.rows = TokenDispatcher::static_buffer, .room = 8, .bias = true},
              {.rows = TokenDispatcher::hierarchical, .one_region = false},
              {.bias = true, .grouped = false},
              {.bias = true, .recomputes = true, .one_region = false},
              {.random = true, .recomputes = true},
              {.bias = true, .fetches_again = true},
              {.rows = TokenDispatcher::static_buffer, .room = 4, .one_region = false, .fetches_again = true},
              {.bias = true, .type = at::kBFloat16},
              {.one_region = false, .type = at::kBFloat16}});
  }
}

// Integers throughout, so that no sum rounds in any order. Inputs are 1 and -1, whose norm equals the input, and
// weights -2 to 2; the activation is relu. Probabilities are 1/2 (the sigmoid of a router of zeros). fp32 has 24
// bits; the largest sums are of 80 rows of at most 2 x 12 x 10 x 4 x 2 halves.
TEST(Echo, OfWholeNumbersIsBitForBitTheLayerWithout) {
  const NanFillGuard poisoned;
  for (const Case& test_case : kCases) {
    for (const auto& [planner, random] :
         {std::pair(EchoPlanner::capfill, false), std::pair(EchoPlanner::exact, false),
          std::pair(EchoPlanner::greedy, true)}) {
      SCOPED_TRACE(test_case.text() + ", " + config::text_of(planner) + (random ? ", random" : ""));
      const Form form{.planner = planner, .random = random, .one_region = false, .type = at::kFloat};
      comm::run_threads(
          test_case.ranks, topology::RankGrid(test_case.ranks, make_config(test_case, form, true).parallel), {},
          [&](const comm::World& world) {
            const auto results = [&](bool replicas) {
              config::Config config = make_config(test_case, form, replicas);
              config.model.moe_router_force_skew = 0;  // with equal logits all tokens choose the same expert
              config.model.moe_router_topk = 1;
              config.model.moe_router_score_function = config::ScoreFunction::sigmoid;
              config.model.gated_linear_unit = false;
              config.model.activation = config::Activation::relu;
              Layer layer(config, world, form.type, true);
              for (nn::Param* param : layer.params) {
                const bool router = param->name.find("router") != std::string::npos,
                           norm = param->init == nn::Init::ones;
                nn::fill(*param, [&](int64_t i) {
                  return router ? 0.0 : norm ? 1.0 : static_cast<double>(i * 7 % 5 - 2);
                });
              }
              return run(layer, test_case, form, world, [](const at::Tensor& x) { return x.sign(); });
            };
            const Results got = results(true), expected = results(false);
            for (const auto& [name, tensor] : expected.tensors) {
              EXPECT_TRUE(at::equal(got.tensors.at(name), tensor)) << name;
            }
            const at::Tensor rows = at::full({1}, got.replicated_rows, at::kLong);
            comm::all_reduce(rows, world.groups().world);
            EXPECT_TRUE(random || rows.item<int64_t>() > 0) << "nothing was cloned";
          });
    }
  }
}

template <class T>
std::vector<T> values(const at::Tensor& x) {
  const at::Tensor here = x.contiguous();
  const T* const data = here.const_data_ptr<T>();
  return {data, data + here.numel()};
}

// Each key of the planner has an effect here: the plans of different options differ.
TEST(Echo, PlansAreThoseOfTheKeys) {
  struct Keys {
    Case on;
    int64_t ranks_of_node;  // 0: alltoall
    plan::EchoOptions options;
    plan::EchoOptions other;
  };
  const auto options = [](EchoPlanner planner) {
    plan::EchoOptions of;
    of.planner = planner;
    of.split = planner == EchoPlanner::greedy ? plan::EchoSplit::breadth_then_depth : plan::EchoSplit::local_first;
    return of;
  };
  plan::EchoOptions wide = options(EchoPlanner::capfill), reclaims = options(EchoPlanner::greedy),
                    near = options(EchoPlanner::exact), drawn = wide, drawn_elsewhere = wide;
  wide.eps_bp = 3000;
  reclaims.reclaim = 0.3;
  near.ranks_per_node = 2;
  drawn.random = drawn_elsewhere.random = true;
  drawn.seed = 3;  // the layer's number
  const Case few{4, 1, 8, 1}, many{4, 1, 8, 2}, ranks{8, 1, 16, 2}, parts{12, 2, 12, 2};
  const Keys cases[] = {{many, 0, options(EchoPlanner::exact), options(EchoPlanner::capfill)},
                        {few, 0, options(EchoPlanner::binpack), options(EchoPlanner::capfill)},
                        {many, 0, wide, options(EchoPlanner::capfill)},
                        {many, 0, reclaims, options(EchoPlanner::greedy)},
                        {ranks, 2, near, options(EchoPlanner::exact)},
                        {parts, 4, near, options(EchoPlanner::exact)},
                        {parts, 1, options(EchoPlanner::exact), near},
                        {many, 0, drawn, drawn_elsewhere}};
  for (const Keys& keys : cases) {
    const Form form{.planner = keys.options.planner,
                    .rows = keys.ranks_of_node > 0 ? TokenDispatcher::hierarchical : TokenDispatcher::alltoall,
                    .random = keys.options.random};
    config::Config config = make_config(keys.on, form, true);
    config.parallel.expert_ranks_per_node = keys.ranks_of_node;
    config.model.moe_echo_eps = static_cast<double>(keys.options.eps_bp) / 10000;
    config.model.moe_echo_reclaim = keys.options.reclaim;
    SCOPED_TRACE(keys.on.text() + ", " + form.text());
    const plan::EchoSizes sizes{keys.on.ep(), static_cast<int>(keys.on.experts), keys.on.slots};
    comm::run_threads(
        keys.on.ranks, topology::RankGrid(keys.on.ranks, config.parallel), {}, [&](const comm::World& world) {
          int others = 0;
          for (const double skew : {0.3, 0.6, 0.9, 1.2}) {
            config::Config skewed = config;
            skewed.model.moe_router_force_skew = skew;
            Layer layer(skewed, world, at::kDouble);
            run(layer, keys.on, form, world);
            ASSERT_EQ(layer.plans.size(), 2U);
            for (const moe::ReplicaPlan& got : layer.plans) {
              const std::vector<int64_t> counts = values<int64_t>(got.counts);
              const plan::EchoPlan expected = plan::plan_echo({counts.data(), sizes}, keys.options);
              EXPECT_EQ(values<int32_t>(got.owners), expected.owner);
              EXPECT_EQ(values<int64_t>(got.source_rows), expected.source_rows);
              EXPECT_EQ(values<int64_t>(got.loads[1]), expected.final_loads);
              std::vector<int64_t> without(static_cast<size_t>(sizes.ranks), 0);
              for (size_t i = 0; i < counts.size(); ++i)
                without[static_cast<size_t>(sizes.home(static_cast<int>(i) % sizes.experts))] += counts[i];
              EXPECT_EQ(values<int64_t>(got.loads[0]), without);
              others += plan::plan_echo({counts.data(), sizes}, keys.other) != expected;
            }
          }
          EXPECT_GT(others, 0) << "these loads give equal results with all options: " << &keys - cases;
        });
  }
}

// An owner reduces its gradient after the replicas' gradients have arrived, and not before.
TEST(Echo, ClonesAreASecondUseOfTheWeightsAtHome) {
  const Case& test_case = kCases[0];
  comm::run_threads(test_case.ranks, topology::RankGrid(test_case.ranks, make_config(test_case, {}, true).parallel),
                    {}, [&](const comm::World& world) {
                      for (const bool replicas : {false, true}) {
                        Layer layer(make_config(test_case, {}, replicas), world, at::kDouble);
                        std::map<std::string, int> uses;
                        for (nn::Param* param : layer.params) {
                          const bool expert = param->placement.grid == topology::Grid::expert;
                          EXPECT_EQ(param->uses_per_microbatch, expert && replicas ? 2 : 1) << param->name;
                          param->on_use.add("test", [&uses, param] { ++uses[param->name]; });
                        }
                        run(layer, test_case, {}, world);
                        for (const nn::Param* param : layer.params)
                          EXPECT_EQ(uses[param->name], 2 * param->uses_per_microbatch) << param->name;
                      }
                    });
}

// The host state of a dispatch belongs to its microbatch until it is combined.
TEST(ExpertsLayer, SendsAMicrobatchBeforeAnotherIsCombined) {
  const Case& test_case = kCases[0];
  comm::run_threads(
      test_case.ranks, topology::RankGrid(test_case.ranks, make_config(test_case, {}, true).parallel), {},
      [&](const comm::World& world) {
        for (const bool replicas : {false, true}) {
          const Layer layer(make_config(test_case, {}, replicas), world, at::kDouble);
          const nn::Microbatch batches[] = {batch_of(0, world.rank()), batch_of(1, world.rank())};
          const auto input = [&](uint64_t i) {
            const auto rank = static_cast<uint64_t>(world.rank());
            return nn::Values(nn::kHiddenStates, sample({kSequence, kSamples, kHidden}, 3 + 2 * rank + i));
          };
          const std::vector<nn::Region> regions = make_regions(layer.blocks[0], false);
          nn::Values apart[] = {input(0), input(1)}, together[] = {input(0), input(1)};
          for (size_t i = 0; i < 2; ++i) {
            for (const nn::Region& region : regions)
              apart[i] = nn::run_forward(region, apart[i], {batches[i]}, nullptr);
          }
          for (const nn::Region& region : regions) {
            for (size_t i = 0; i < 2; ++i) together[i] = nn::run_forward(region, together[i], {batches[i]}, nullptr);
          }
          for (size_t i = 0; i < 2; ++i)
            EXPECT_TRUE(at::equal(together[i].tensor(nn::kHiddenStates), apart[i].tensor(nn::kHiddenStates))) << i;
        }
      });
}

// A step zeroes its counts; otherwise they would include rows of earlier steps.
TEST(Echo, StepCountsIncludeThoseOfTheBuffers) {
  const Case& first = kCases[0];
  const Form form{.rows = TokenDispatcher::static_buffer, .room = 4};
  const topology::RankGrid grid(first.ranks, make_config(first, form, true).parallel);
  comm::run_threads(first.ranks, grid, {}, [&](const comm::World& world) {
    for (const bool replicas : {false, true}) {
      const Layer layer(make_config(first, form, replicas), world, at::kDouble);
      std::vector<at::Tensor> counts;
      for (const auto& segment : layer.blocks[0].segments) segment->collect_step_counts(counts);
      ASSERT_EQ(counts.size(), 1U) << replicas;
      EXPECT_EQ(counts[0].sizes(), (std::vector<int64_t>{first.ep()})) << "rows of each rank";
    }
  });
}

// With as many slots as local experts the exact planner gives no rank more rows than the mean: buffers for the even
// load fit all rows. A layer without replicas would lose some.
TEST(Echo, ExactNeedsNoMoreRoomThanTheEvenLoad) {
  const NanFillGuard poisoned;
  const Case test_case{4, 1, 8, 2};
  const Form exact{.planner = EchoPlanner::exact, .rows = TokenDispatcher::static_buffer, .room = 1};
  Form roomy = exact;
  roomy.room = 4;
  comm::run_threads(
      4, topology::RankGrid(4, make_config(test_case, exact, true).parallel), {}, [&](const comm::World& world) {
        const auto difference = [&](bool replicas) {
          Layer tight(make_config(test_case, exact, replicas), world, at::kDouble),
              wide(make_config(test_case, roomy, replicas), world, at::kDouble);
          const Results got = run(tight, test_case, exact, world), expected = run(wide, test_case, roomy, world);
          int64_t other = 0;
          for (const auto& [name, tensor] : expected.tensors) other += !at::equal(got.tensors.at(name), tensor);
          const at::Tensor all = at::full({1}, other, at::kLong);
          comm::all_reduce(all, world.groups().world);
          return all.item<int64_t>();
        };
        EXPECT_EQ(difference(true), 0) << "bit for bit";
        EXPECT_GT(difference(false), 0) << "the load is too even to show anything";
      });
}

}  // namespace
}  // namespace metroplex::test::echo_ranks_test

// Groups of parameters, and the ranks over which their gradients are summed.
#include "distributed/families.h"

#include "base/error.h"
#include "distributed/tools.h"
#include "support/run_ranks.h"

namespace metroplex::test::families_ranks_test {
namespace {

config::Parallel make_parallel(int ep) {
  config::Parallel parallel;
  parallel.expert_model_parallel_size = ep;
  parallel.expert_tensor_parallel_size = 1;
  return parallel;
}

distributed::FamilyOptions make_options(const config::Parallel& parallel, const config::Sharding& sharding) {
  distributed::FamilyOptions options;
  options.parallel = &parallel;
  options.sharding = sharding;
  return options;
}

std::vector<nn::Param> three_params() {
  std::vector<nn::Param> params{make_param("dense", values({6}, 1)), make_param("expert", values({6}, 2)),
                                make_param("router", values({6}, 3, at::kFloat))};
  params[1].placement.grid = topology::Grid::expert;
  return params;
}

void run_experts(int ranks, const config::Parallel& parallel, const comm::RankBody& body) {
  comm::run_threads(ranks, topology::RankGrid(ranks, parallel), {std::chrono::seconds(60)}, body);
}

TEST(ParamFamilies, GradientsHaveTheParametersDtypeOnRequest) {
  const config::Parallel parallel = make_parallel(1);
  for (const bool as_params : {false, true}) {
    run_experts(1, parallel, [&](const comm::World& world) {
      std::vector<nn::Param> params{make_param("half", values({6}, 1, at::kBFloat16))};
      distributed::FamilyOptions options = make_options(parallel, {});
      options.gradients_as_params = as_params;
      distributed::ParamFamilies families(world, pointers(params), options);
      families.begin_step(1);
      EXPECT_EQ(params[0].main_grad.scalar_type(), as_params ? at::kBFloat16 : at::kFloat);
    });
  }
}

// Every rank adds its number, counted from 1.
void accumulate(std::vector<nn::Param>& params, int rank) {
  for (nn::Param& param : params) param.accumulate([&](at::Tensor& grad) { grad.add_(rank + 1); });
}

constexpr config::Sharding kStages[] = {{}, {true}, {true, true}, {true, true, true}};

// edp are the ranks of the same ep index: the even ones and the odd ones.
void expect_sums(int ranks, const config::Parallel& parallel) {
  for (const config::Sharding& sharding : kStages) {
    SCOPED_TRACE(sharding.stage());
    run_experts(ranks, parallel, [&](const comm::World& world) {
      std::vector<nn::Param> params = three_params();
      distributed::ParamFamilies families(world, pointers(params), make_options(parallel, sharding));
      ASSERT_EQ(families.all().size(), 3u);
      families.begin_step(1);
      accumulate(params, world.rank());
      families.finish_gradients();
      double dense = 0, expert = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        dense += rank + 1.0;
        if (rank % 2 == world.rank() % 2) expert += rank + 1.0;
      }
      for (const distributed::Shard& slice : families.slices()) {
        const double expected = slice.param == &params[1] ? expert : dense;
        EXPECT_TRUE(at::all(slice.gradient == expected).item<bool>()) << slice.param->name;
        EXPECT_EQ(slice.gradient.scalar_type(), slice.param->dtype);
      }
    });
  }
}

TEST(ParamFamilies, EachIsSummedOverItsOwnRanks) { expect_sums(4, make_parallel(2)); }

TEST(ParamFamilies, RunsOfDataParallelRanksAddUpInEveryFamily) {
  config::Parallel parallel = make_parallel(2);
  parallel.num_distributed_optimizer_instances = 2;
  expect_sums(8, parallel);
}

// ep 4 on four ranks: every rank has its own experts, and all share the dense parameters.
TEST(ParamFamilies, WhoSharesWithNobodyGathersNothingAndKeepsItsGradients) {
  const config::Parallel parallel = make_parallel(4);
  for (const config::Sharding& sharding : kStages) {
    SCOPED_TRACE(sharding.stage());
    run_experts(4, parallel, [&](const comm::World& world) {
      std::vector<nn::Param> params = three_params();
      distributed::ParamFamilies families(world, pointers(params), make_options(parallel, sharding));
      const distributed::ParamFamily &expert = families.of(params[1]), &dense = families.of(params[0]);
      EXPECT_FALSE(expert.values->storage().defined());
      EXPECT_FALSE(expert.gradients->options().transient_buckets);
      EXPECT_EQ(dense.gradients->options().transient_buckets, sharding.gradients);
      EXPECT_EQ(dense.values->storage().defined(), sharding.any());
      for (int step = 0; step < 2; ++step) {
        families.begin_step(2);
        for (int microbatch = 0; microbatch < 2; ++microbatch) accumulate(params, world.rank());
        families.finish_gradients();
        EXPECT_TRUE(at::all(params[1].main_grad == 2 * (world.rank() + 1)).item<bool>());
        families.updated();
        families.finish_gathers();
        EXPECT_TRUE(at::equal(params[1].data, values({6}, 2)));
      }
      ASSERT_EQ(expert.slices.size(), 1u);
      EXPECT_EQ(expert.slices[0].size(), 6);
      EXPECT_EQ(families.gathered_bytes() + families.transient_bytes(), 0);
    });
  }
}

// One bucket is reduced while the next is filled.
TEST(ParamFamilies, TwoTransientBucketsAtATimeAreEachSummed) {
  config::Parallel parallel;
  parallel.ddp_bucket_size = 6;
  for (const bool overlap : {true, false}) {
    SCOPED_TRACE(overlap);
    parallel.overlap_grad_reduce = overlap;
    run_experts(2, parallel, [&](const comm::World& world) {
      std::vector<nn::Param> params;
      for (int i = 0; i < 4; ++i) params.push_back(make_param("p" + std::to_string(i), values({8}, i)));
      distributed::ParamFamilies families(world, pointers(params), make_options(parallel, {true, true}));
      const distributed::GradBuffer& gradients = *families.all().front().gradients;
      ASSERT_EQ(gradients.layout().buckets().size(), 4u);
      const int64_t bucket = gradients.layout().buckets()[0].end * 8;
      for (int step = 0; step < 2; ++step) {
        families.begin_step(2);
        for (int microbatch = 0; microbatch < 2; ++microbatch) {
          for (size_t i = params.size(); i-- > 0;) {
            params[i].accumulate([&](at::Tensor& grad) {
              EXPECT_EQ(gradients.transient_bytes(), bucket * (overlap && (microbatch > 0 || i < 3) ? 2 : 1));
              grad.add_(static_cast<double>((world.rank() + 1) * 100) + static_cast<double>(i));
            });
          }
        }
        families.finish_gradients();
        EXPECT_EQ(gradients.transient_bytes(), 0);
        for (const distributed::Shard& slice : families.slices()) {
          const auto i = static_cast<double>(slice.param - params.data());
          EXPECT_TRUE(at::all(slice.gradient == 2 * (300 + 2 * i)).item<bool>()) << slice.param->name;
        }
      }
    });
  }
}

// Megatron's default grows with the data-parallel ranks of a family: 48M elements on 48 of them.
TEST(ParamFamilies, TheSizeOfABucketIsThatOfTheirOwnRanks) {
  config::Parallel parallel;
  parallel.overlap_grad_reduce = true;
  run_experts(48, parallel, [&](const comm::World& world) {
    std::vector<nn::Param> params;
    for (int i = 0; i < 3; ++i) {
      params.push_back(make_param("p" + std::to_string(i), at::empty({20'500'000}, at::device(at::kMeta))));
    }
    distributed::FamilyOptions options = make_options(parallel, {});
    options.device = at::kMeta;
    distributed::ParamFamilies families(world, pointers(params), options);
    EXPECT_EQ(families.all().front().gradients->layout().buckets().size(), 1u);
  });
}

TEST(ParamFamilies, AreTheSameOnEveryPipelineStage) {
  config::Parallel parallel = make_parallel(2);
  parallel.pipeline_model_parallel_size = 2;
  run_experts(4, parallel, [&](const comm::World& world) {
    std::vector<nn::Param> params = three_params();
    if (!world.groups().pp.first()) params.resize(1);
    const distributed::ParamFamilies families(world, pointers(params), make_options(parallel, {true}));
    std::vector<distributed::FamilyKey> keys;
    for (const distributed::ParamFamily& family : families.all()) keys.push_back(family.key);
    using topology::Grid;
    EXPECT_EQ(keys, (std::vector<distributed::FamilyKey>{
                        {Grid::dense, at::kFloat}, {Grid::dense, at::kDouble}, {Grid::expert, at::kDouble}}));
  });
}

TEST(ParamFamilies, OptimizerInstancesMustDivideTheRanksThatHoldTheSameExperts) {
  config::Parallel parallel = make_parallel(4);
  parallel.num_distributed_optimizer_instances = 2;
  try {
    run_experts(4, parallel, [](const comm::World&) {});
    ADD_FAILURE() << "one rank was cut in two";
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("edp = 1 is not a multiple of parallel.num_distributed_optimizer_"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace metroplex::test::families_ranks_test

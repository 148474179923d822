// Muon on matrices shared by several groups, and on stacks of them: every rank's shard equals that of the whole
// matrix.
#include <ATen/ATen.h>

#include <stdexcept>
#include <tuple>

#include "comm/collectives.h"
#include "optim/muon.h"
#include "distributed/tools.h"
#include "optim/judged.h"
#include "support/run_ranks.h"

namespace metroplex::test::muon_ranks_test {
namespace {

using topology::Axis;

config::Optim muon_config() {
  config::Optim config;
  config.optimizer = "muon";
  config.muon_momentum = 0.9;
  return config;
}

constexpr double kRate = 0.02, kDecay = 0.1;

// One step from values(shape, 1) and gradient values(shape, 11), of one matrix.
at::Tensor expected_step(const at::Tensor& before, const at::Tensor& gradient) {
  const double scale = optim::muon_scale(config::MuonScale::spectral, before.size(0), before.size(1));
  // Nesterov of the first step: lerp(gradient, 0.1 gradient, 0.9) = 0.19 gradient; its length does not matter.
  return before * (1 - kRate * kDecay) - kRate * scale * optim::newton_schulz(gradient, 5);
}

struct Sharing {
  comm::Groups axes;
  comm::Group shard;
};

// The local shard after a step; this rank updates only `range` of it.
at::Tensor take_step(nn::Param& param, std::pair<int64_t, int64_t> range, const Sharing& sharing) {
  const config::Optim config = muon_config();
  std::vector<nn::Param*> params{&param};
  const optim::ParamGroups groups(config, params);
  optim::OptimizerContext context;
  context.groups = &groups;
  context.axes = sharing.axes;
  context.find_shard_group = [&](const nn::Param&) { return sharing.shard; };
  const auto flat = [&](const at::Tensor& x) {
    return x.view(-1).narrow(0, range.first, range.second - range.first);
  };
  std::vector<distributed::Shard> slices;
  if (range.first < range.second)
    slices.push_back({&param, range.first, range.second, flat(param.data), flat(param.main_grad)});
  const auto muon = optim::make_optimizer(config, slices, context);
  std::vector<optim::GroupRates> rates;
  for (const optim::GroupFactors& group : groups.factors()) rates.push_back({kRate, kDecay * group.wd_mult});
  muon->step(make_step_state(config, rates, 1.0, 1));
  return param.data;
}

nn::Param local_param(const at::Tensor& data, const at::Tensor& gradient, topology::Placement placement) {
  at::Tensor local = data, local_gradient = gradient;
  for (const topology::DimShard& dim_shard : placement.cuts) {
    const auto rows = [&](const at::Tensor& x) {
      std::vector<at::Tensor> ranges;
      for (const topology::RowRange& range : dim_shard.ranges)
        ranges.push_back(x.narrow(dim_shard.dim, range.global, range.size));
      return at::cat(ranges, dim_shard.dim);
    };
    local = rows(local);
    local_gradient = rows(local_gradient);
  }
  nn::Param param = make_param("weight", local.clone());
  param.global_shape = data.sizes().vec();
  param.main_grad = local_gradient.clone();
  param.placement = std::move(placement);
  return param;
}

double difference(const nn::Param& param, const at::Tensor& whole) {
  const nn::Param expected = local_param(whole, whole, param.placement);
  return (param.data - expected.data).abs().max().item<double>();
}

// A sum of at most 24 products of numbers up to 1, five times. Products of at most 16 terms, each rounded by 2^-53,
// pass five times through a polynomial of slope 3.44, times rate and scale: 16 * 1.1e-16 * 480 * 0.02 * 4.
constexpr double kTolerance = 7e-14;

TEST(MuonRanks, AMatrixCutInTwoDimsOverTwoGroupsIsPutTogetherOverBoth) {
  run_ranks(4, {.tp = 2, .dp = 2}, [](const comm::World& world) {
    const comm::Group &rows = world.groups().tp, &columns = world.groups().dp;
    Sharing sharing;
    sharing.axes.tp_gradients = rows;
    sharing.axes.dp = columns;
    const at::Tensor before = values({8, 6}, 1), gradient = values({8, 6}, 11);
    nn::Param param = local_param(before, gradient,
                                  {.cuts = {topology::even_shard(0, Axis::tp, 8, 2, rows.index()),
                                            topology::even_shard(1, Axis::dp, 6, 2, columns.index())}});
    take_step(param, {0, param.numel()}, sharing);
    EXPECT_LT(difference(param, expected_step(before, gradient)), kTolerance);
  });
}

at::Tensor expected_experts(const at::Tensor& before, const at::Tensor& gradient) {
  std::vector<at::Tensor> experts;
  for (int64_t e = 0; e < before.size(0); ++e) experts.push_back(expected_step(before[e], gradient[e]));
  return at::stack(experts);
}

// [4 experts, 8, 5]: experts over ep, gate and up of each over etp.
TEST(MuonRanks, EveryExpertOfAStackIsAMatrixOfItsOwn) {
  run_ranks(4, {.tp = 2, .dp = 2}, [](const comm::World& world) {
    const comm::Group &etp = world.groups().tp, &ep = world.groups().dp;
    Sharing sharing;
    sharing.axes.etp = etp;
    sharing.axes.ep = ep;
    const at::Tensor before = values({4, 8, 5}, 1), gradient = values({4, 8, 5}, 11);
    const topology::RowRange gate{0, 2 * etp.index(), 2}, up{2, 4 + 2 * etp.index(), 2};
    nn::Param param =
        local_param(before, gradient,
                    {.grid = topology::Grid::expert,
                     .cuts = {topology::even_shard(0, Axis::ep, 4, 2, ep.index()), {1, Axis::etp, {gate, up}}},
                     .regions = topology::expert_regions("experts", 4, "linear_fc1.weight")});
    take_step(param, {0, param.numel()}, sharing);
    EXPECT_LT(difference(param, expected_experts(before, gradient)), kTolerance);
  });
}

// linear_qkv of two query groups over tp, one group on each rank: q, k and v are matrices of the rows of both ranks.
TEST(MuonRanks, QkvOfAllGroupsIsGathered) {
  run_ranks(2, {.tp = 2}, [](const comm::World& world) {
    Sharing sharing;
    sharing.axes.tp_gradients = world.groups().tp;
    const at::Tensor before = values({16, 6}, 1), gradient = values({16, 6}, 11);
    std::vector<topology::Region> regions;
    at::Tensor expected = before.clone();
    for (const auto& [name, first, rows] :
         std::vector<std::tuple<std::string, int64_t, int64_t>>{{"q", 0, 4}, {"k", 4, 2}, {"v", 6, 2}}) {
      const auto of_both = [&, first = first, rows = rows](const at::Tensor& x) {
        return at::cat({x.narrow(0, first, rows), x.narrow(0, 8 + first, rows)});
      };
      const at::Tensor both = expected_step(of_both(before), of_both(gradient));
      for (int64_t group = 0; group < 2; ++group) {
        regions.push_back({name, 0, 8 * group + first, rows, name});
        expected.narrow(0, 8 * group + first, rows).copy_(both.narrow(0, group * rows, rows));
      }
    }
    nn::Param param = local_param(
        before, gradient,
        {.cuts = {topology::even_shard(0, Axis::tp, 16, 2, world.groups().tp.index())}, .regions = regions});
    take_step(param, {0, param.numel()}, sharing);
    EXPECT_LT(difference(param, expected), kTolerance);
  });
}

// The flat range is split in the middle of an expert, and one rank of three has nothing of it.
TEST(MuonRanks, AStackThatIsSplitByZeroTakesTheStepsOfWholeExperts) {
  run_ranks(3, {.dp = 3}, [](const comm::World& world) {
    Sharing sharing;
    sharing.shard = world.groups().dp;
    const at::Tensor before = values({3, 4, 5}, 1), gradient = values({3, 4, 5}, 11);
    nn::Param param = local_param(
        before, gradient,
        {.grid = topology::Grid::expert, .regions = topology::expert_regions("experts", 3, "linear_fc2.weight")});
    const std::pair<int64_t, int64_t> ranges[] = {{0, 27}, {27, 60}, {0, 0}};
    const auto range = ranges[world.rank()];
    take_step(param, range, sharing);
    at::Tensor expected = before.clone().view(-1);
    expected.narrow(0, range.first, range.second - range.first)
        .copy_(expected_experts(before, gradient).view(-1).narrow(0, range.first, range.second - range.first));
    EXPECT_LT(difference(param, expected.view({3, 4, 5})), kTolerance);
  });
}

TEST(MuonRanks, AWeightOfThreeDimsThatNamesNoMatricesIsRefused) {
  nn::Param param = local_param(values({3, 4, 5}, 1), values({3, 4, 5}, 11), {});
  EXPECT_THROW(take_step(param, {0, param.numel()}, {}), std::logic_error);
}

}  // namespace
}  // namespace metroplex::test::muon_ranks_test

// Ranks that count, sum and write: from the placement, against all ranks of folded grids one by one.
#include "topology/placement.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "topology/rank_grid.h"

namespace metroplex::topology::placement_test {
namespace {

struct Fold {
  int world, tp, cp, pp, ep, etp;
  const char* order = "tp-cp-ep-dp-pp";
};
constexpr Fold kFolds[] = {{1, 1, 1, 1, 1, 1},  {8, 2, 1, 1, 4, 1},  {8, 2, 1, 2, 2, 1},
                           {8, 2, 2, 1, 2, 2},  {16, 2, 2, 2, 4, 1}, {16, 4, 1, 2, 2, 2},
                           {16, 1, 2, 1, 8, 1}, {24, 2, 1, 3, 4, 1}, {16, 2, 2, 2, 2, 2, "tp-cp-ep-pp-dp"}};

RankGrid make_grid(const Fold& fold) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = fold.tp;
  parallel.context_parallel_size = fold.cp;
  parallel.pipeline_model_parallel_size = fold.pp;
  parallel.expert_model_parallel_size = fold.ep;
  parallel.expert_tensor_parallel_size = fold.etp;
  parallel.order = fold.order;
  return RankGrid(fold.world, parallel);
}

// A tensor [kRows, kRows] with dim d sharded over axes[d] (none: whole), on rank `rank`.
constexpr int64_t kRows = 24;
struct Form {
  Grid grid;
  AxisSet axes[2];
};
const Form kForms[] = {{Grid::dense, {{}, {}}},         {Grid::dense, {Axis::tp, {}}},
                       {Grid::dense, {{}, Axis::tp}},   {Grid::expert, {{}, {}}},
                       {Grid::expert, {Axis::ep, {}}},  {Grid::expert, {Axis::ep, Axis::etp}},
                       {Grid::expert, {{}, Axis::etp}}, {Grid::expert, {{Axis::etp, Axis::ep}, {}}}};

Placement make_placement(const Form& form, const RankGrid& grid, int rank) {
  Placement placement{.grid = form.grid};
  for (int dim = 0; dim < 2; ++dim) {
    const AxisSet axes = form.axes[dim];
    if (axes.empty()) continue;
    placement.cuts.push_back(even_shard(dim, axes, kRows, grid.size(axes), grid.index_in_group(rank, axes)));
  }
  return placement;
}

std::set<int64_t> list_elements(const Placement& placement) {
  std::set<int64_t> elements;
  std::vector<int64_t> rows[2];
  for (int dim = 0; dim < 2; ++dim) {
    const DimShard* dim_shard = find_shard(placement, dim);
    const std::vector<RowRange> ranges =
        dim_shard != nullptr ? dim_shard->ranges : std::vector<RowRange>{{0, 0, kRows}};
    for (const RowRange& range : ranges) {
      for (int64_t row = 0; row < range.size; ++row) rows[dim].push_back(range.global + row);
    }
  }
  for (const int64_t i : rows[0]) {
    for (const int64_t j : rows[1]) elements.insert(i * kRows + j);
  }
  return elements;
}

template <class Body>
void for_each_fold(const Body& body) {
  for (const Fold& fold : kFolds) {
    const RankGrid grid = make_grid(fold);
    for (const Form& form : kForms) {
      SCOPED_TRACE(testing::Message() << "world " << fold.world << " tp " << fold.tp << " cp " << fold.cp << " pp "
                                      << fold.pp << " ep " << fold.ep << " etp " << fold.etp << " cut over '"
                                      << to_string(form.axes[0]) << "' and '" << to_string(form.axes[1]) << "'");
      body(grid, form);
    }
  }
}

TEST(Placement, OfAllRanksThatHoldAnElementAtOneDataParallelPlaceExactlyOneCounts) {
  for_each_fold([](const RankGrid& grid, const Form& form) {
    // Stage and data-parallel position -> element -> ranks that count it, and ranks that hold it.
    std::map<std::pair<int, int>, std::map<int64_t, int>> counting, holding;
    for (int rank = 0; rank < grid.world_size(); ++rank) {
      const Placement placement = make_placement(form, grid, rank);
      const auto position =
          std::make_pair(grid.coordinates(rank).pp, grid.index_in_group(rank, data_parallel_axes(form.grid)));
      for (const int64_t element : list_elements(placement)) {
        ++holding[position][element];
        counting[position][element] += counts(placement, grid.coordinates(rank)) ? 1 : 0;
      }
    }
    for (const auto& [position, elements] : counting) {
      ASSERT_EQ(elements.size(), kRows * kRows);
      for (const auto& [element, ranks] : elements) ASSERT_EQ(ranks, 1) << "element " << element;
    }
    const int copies = grid.size(replicating_axes(make_placement(form, grid, 0)));
    for (const auto& [position, elements] : holding) {
      for (const auto& [element, ranks] : elements) ASSERT_EQ(ranks, copies) << "element " << element;
    }
  });
}

// As in a save: the data-parallel position i modulo their number writes entry i.
TEST(Placement, EveryElementOfAStageIsWrittenByExactlyOneRank) {
  for_each_fold([](const RankGrid& grid, const Form& form) {
    const AxisSet data = data_parallel_axes(form.grid);
    for (int ordinal = 0; ordinal < 3; ++ordinal) {
      std::map<std::pair<int, int64_t>, int> writers;
      for (int rank = 0; rank < grid.world_size(); ++rank) {
        const Placement placement = make_placement(form, grid, rank);
        const bool writes =
            counts(placement, grid.coordinates(rank)) && ordinal % grid.size(data) == grid.index_in_group(rank, data);
        for (const int64_t element : list_elements(placement))
          writers[{grid.coordinates(rank).pp, element}] += writes ? 1 : 0;
      }
      for (const auto& [element, ranks] : writers) ASSERT_EQ(ranks, 1) << "element " << element.second;
    }
  });
}

// A partial gradient may be summed along replicating axes, and only ranks with the same elements meet there.
TEST(Placement, RanksThatDifferInReplicatingAxesHoldTheSameElements) {
  for_each_fold([](const RankGrid& grid, const Form& form) {
    for (int rank = 0; rank < grid.world_size(); ++rank) {
      const Placement placement = make_placement(form, grid, rank);
      for (const AxisInfo& axis : kAxes) {
        if (axis.axis == Axis::gtp || !replicating_axes(placement).contains(axis.axis)) continue;
        for (const int other : grid.group_ranks(rank, axis.axis)) {
          EXPECT_EQ(list_elements(make_placement(form, grid, other)), list_elements(placement));
          EXPECT_EQ(grid.coordinates(other).pp, grid.coordinates(rank).pp);
        }
      }
    }
  });
}

TEST(Placement, ReplicatingAxesAreThoseOfTheGridWithoutCutsPipelineAndData) {
  const auto axes = [](const Placement& placement) { return to_string(replicating_axes(placement)); };
  EXPECT_EQ(replicating_axes({}), (AxisSet{Axis::tp, Axis::gtp}));
  EXPECT_EQ(axes({.cuts = {{0, Axis::tp, {}}}}), to_string(Axis::gtp));
  EXPECT_EQ(axes({.grid = Grid::expert}), to_string({Axis::etp, Axis::ep}));
  EXPECT_EQ(axes({.grid = Grid::expert, .cuts = {{0, Axis::ep, {}}}}), to_string(Axis::etp));
  EXPECT_EQ(replicating_axes({.grid = Grid::expert, .cuts = {{0, Axis::ep, {}}, {2, Axis::etp, {}}}}), AxisSet());
}

TEST(Placement, WeightsOfTwoDimsDecayAndBiasesOfAnyNumberDoNot) {
  EXPECT_TRUE(has_weight_decay({}, 2));
  EXPECT_TRUE(has_weight_decay({}, 3));
  EXPECT_TRUE(has_weight_decay({.role = Role::embedding}, 2));
  EXPECT_FALSE(has_weight_decay({}, 1));
  EXPECT_FALSE(has_weight_decay({.role = Role::norm}, 1));
  EXPECT_FALSE(has_weight_decay({.grid = Grid::expert, .role = Role::bias}, 2)) << "a stack of biases";
}

TEST(Placement, MatricesAreWeightsOfTwoDimsAndPartsThatAreMatrices) {
  EXPECT_TRUE(has_matrices({}, 2));
  EXPECT_TRUE(has_matrices({.role = Role::router}, 2));
  EXPECT_TRUE(has_matrices({.regions = {{"gate", 0, 0, 4}}}, 2));
  EXPECT_TRUE(has_matrices({.regions = expert_regions("experts", 2, "linear_fc1.weight")}, 3));
  EXPECT_FALSE(has_matrices({}, 3));
  EXPECT_FALSE(has_matrices({}, 1));
  EXPECT_FALSE(has_matrices({.role = Role::embedding}, 2));
  EXPECT_FALSE(has_matrices({.role = Role::output}, 2));
  EXPECT_FALSE(has_matrices({.role = Role::bias}, 2));
}

TEST(Placement, ExpertsAreCalledAsMegatronCallsThem) {
  std::vector<std::string> names;
  for (const Region& region : expert_regions("decoder.layers.3.mlp.experts", 11, "linear_fc1.weight")) {
    names.push_back(region.name);
    EXPECT_EQ(region.begin, static_cast<int64_t>(names.size()) - 1);
    EXPECT_EQ(region.size, 1);
    EXPECT_EQ(region.matrix, region.name);
  }
  ASSERT_EQ(names.size(), 11u);
  EXPECT_EQ(names[0], "decoder.layers.3.mlp.experts.local_experts.0.linear_fc1.weight");
  EXPECT_EQ(names[10], "decoder.layers.3.mlp.experts.local_experts.10.linear_fc1.weight");
}

TEST(Placement, AnUnevenSplitNamesTheRowsTheRanksAndTheAxis) {
  try {
    even_shard(0, Axis::tp, 10, 4, 0);
    FAIL() << "10 rows over 4 ranks";
  } catch (const base::Error& error) {
    const std::string text = error.what();
    for (const char* word : {"10 rows", "4 ranks", "tp"}) EXPECT_NE(text.find(word), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace metroplex::topology::placement_test

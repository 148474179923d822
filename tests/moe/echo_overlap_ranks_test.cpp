// Replica weights and their gradients are waited for directly before their use, not earlier: checks the order in
// which a rank starts and waits for operations.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "moe/echo_layer.h"
#include "support/poisoned.h"

namespace metroplex::test::echo_overlap_ranks_test {
namespace {

using namespace echo_layer;

// Kernels and calls by name; calls for replicas with a number in start order, and "wait <number>".
class Order final : public device::Recorder {
 public:
  void run(device::Operation operation) override {
    operation.run();
    std::string line = operation.name;
    if (operation.group == "ep") {
      if (line == "wait") {
        line += " " + std::to_string(numbers_.at(operation.work));
        numbers_.erase(operation.work);
      } else {
        numbers_[operation.work] = next_;
        line += " " + std::to_string(next_++);
      }
    } else if (line == "wait") {
      line += " of rows";
    }
    lines.push_back(std::move(line));
  }
  bool none_under_way() const { return numbers_.empty(); }
  std::vector<std::string> lines;

 private:
  std::map<const void*, int> numbers_;
  int next_ = 0;
};

// The relevant lines of `all`, one for each set of concurrent exchanges. Gradients of rows and of their probabilities
// are sent one after the other.
std::vector<std::string> filter_operations(const std::vector<std::string>& all) {
  std::vector<std::string> some;
  for (const std::string& line : all) {
    for (const char* begin : {"fetch_rows", "return_rows", "wait", "grouped_product", "all_gather", "all_to_all"}) {
      if (line.rfind(begin, 0) != 0 || (line == "all_to_all" && !some.empty() && some.back() == line)) continue;
      if (line == "wait of rows" && !some.empty() && some.back() == line) continue;
      some.push_back(line);
    }
  }
  return some;
}

using Lines = std::vector<std::string>;

struct Passes {
  Lines forward, backward;
};

Passes record_order(const comm::World& world, const Case& test_case, const Form& form) {
  Order order;
  Layer layer(make_config(test_case, form, true), world, form.type, false, &order);
  const std::vector<nn::Region> regions = make_regions(layer.blocks[0], form.one_region);
  const nn::Microbatch batch = batch_of(0, world.rank());
  nn::Values x(nn::kHiddenStates, sample({kSequence, kSamples, kHidden}, 5, form.type));
  std::vector<nn::RegionRun> runs(regions.size());
  for (size_t i = 0; i < regions.size(); ++i) x = nn::run_forward(regions[i], x, {batch}, &runs[i]);
  EXPECT_TRUE(order.none_under_way()) << "operations in flight after a forward";
  Passes passes{filter_operations(order.lines), {}};
  order.lines.clear();
  nn::Gradients dy{sample({kSequence, kSamples, kHidden}, 6, form.type)};
  for (size_t i = regions.size(); i-- > 0;) dy = nn::run_backward(std::move(runs[i]), dy, {});
  EXPECT_TRUE(order.none_under_way()) << "operations in flight after a backward";
  for (const nn::Param* param : layer.params) EXPECT_TRUE(param->is_synchronized()) << param->name;
  passes.backward = filter_operations(order.lines);
  return passes;
}

void with_ranks(const Case& test_case, const std::function<void(const comm::World&)>& body) {
  comm::run_threads(test_case.ranks, topology::RankGrid(test_case.ranks, make_config(test_case, {}, true).parallel),
                    {}, body);
}

TEST(EchoOverlap, EachWeightIsJoinedBeforeItsProductAndGradientsWhenAllIsDone) {
  const NanFillGuard poisoned;
  with_ranks(kCases[0], [&](const comm::World& world) {
    const Passes got = record_order(world, kCases[0], {});
    EXPECT_EQ(got.forward, (Lines{"all_gather", "wait of rows", "all_gather", "wait of rows", "fetch_rows 0",
                                  "fetch_rows 1", "all_to_all", "wait of rows", "wait 0", "grouped_product", "wait 1",
                                  "grouped_product", "all_to_all", "wait of rows"}));
    EXPECT_EQ(got.backward, (Lines{"all_to_all", "wait of rows", "grouped_product", "grouped_product",
                                   "return_rows 2", "grouped_product", "return_rows 3", "grouped_product",
                                   "all_to_all", "wait of rows", "all_to_all", "wait of rows", "wait 3", "wait 2"}));
  });
}

TEST(EchoOverlap, OffEachIsWaitedForWhereItStarts) {
  with_ranks(kCases[0], [&](const comm::World& world) {
    const Passes got = record_order(world, kCases[0], {.overlaps = false});
    EXPECT_EQ(got.forward, (Lines{"all_gather", "wait of rows", "all_gather", "wait of rows", "fetch_rows 0",
                                  "fetch_rows 1", "all_to_all", "wait of rows", "wait 0", "wait 1", "grouped_product",
                                  "grouped_product", "all_to_all", "wait of rows"}));
    EXPECT_EQ(got.backward, (Lines{"all_to_all", "wait of rows", "grouped_product", "grouped_product",
                                   "return_rows 2", "wait 2", "grouped_product", "return_rows 3", "wait 3",
                                   "grouped_product", "all_to_all", "wait of rows", "all_to_all", "wait of rows"}));
  });
}

TEST(EchoOverlap, WhatIsFetchedAgainStartsWithTheBackwardOfItsIsland) {
  with_ranks(kCases[0], [&](const comm::World& world) {
    const Passes on = record_order(world, kCases[0], {.fetches_again = true});
    EXPECT_EQ(on.backward, (Lines{"fetch_rows 2", "fetch_rows 3", "all_to_all", "wait of rows", "wait 2",
                                  "grouped_product", "grouped_product", "return_rows 4", "grouped_product",
                                  "return_rows 5", "wait 3", "grouped_product", "all_to_all", "wait of rows",
                                  "all_to_all", "wait of rows", "wait 5", "wait 4"}));
    const Passes off = record_order(world, kCases[0], {.fetches_again = true, .overlaps = false});
    EXPECT_EQ(off.backward,
              (Lines{"all_to_all", "wait of rows", "fetch_rows 2", "wait 2", "grouped_product", "grouped_product",
                     "return_rows 3", "wait 3", "grouped_product", "return_rows 4", "wait 4", "fetch_rows 5",
                     "wait 5", "grouped_product", "all_to_all", "wait of rows", "all_to_all", "wait of rows"}));
  });
}

// With dispatch and experts in separate autograd regions (`Region`), the weights arrive before the dispatch ends; the
// gradients return to the owner during the dispatch's backward.
TEST(EchoOverlap, AnIslandEndsWithNothingUnderWayInForward) {
  with_ranks(kCases[0], [&](const comm::World& world) {
    const Passes got = record_order(world, kCases[0], {.one_region = false});
    EXPECT_EQ(got.forward, (Lines{"all_gather", "wait of rows", "all_gather", "wait of rows", "fetch_rows 0",
                                  "fetch_rows 1", "all_to_all", "wait of rows", "wait 0", "wait 1", "grouped_product",
                                  "grouped_product", "all_to_all", "wait of rows"}));
    EXPECT_EQ(got.backward, (Lines{"all_to_all", "wait of rows", "grouped_product", "grouped_product",
                                   "return_rows 2", "grouped_product", "return_rows 3", "grouped_product",
                                   "all_to_all", "wait of rows", "all_to_all", "wait of rows", "wait 3", "wait 2"}));
  });
}

TEST(EchoOverlap, ChangesNoBit) {
  const NanFillGuard poisoned;
  for (const Case& test_case : kCases) {
    with_ranks(test_case, [&](const comm::World& world) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        for (int bits = 0; bits < 16; ++bits) {
          Form form{.bias = (bits & 1) != 0,
                    .recomputes = (bits & 2) != 0,
                    .one_region = (bits & 4) != 0,
                    .fetches_again = (bits & 8) != 0,
                    .type = type};
          SCOPED_TRACE(test_case.text() + ", " + form.text());
          const auto results = [&](bool overlaps) {
            form.overlaps = overlaps;
            Layer layer(make_config(test_case, form, true), world, type);
            return run(layer, test_case, form, world);
          };
          const Results on = results(true), off = results(false);
          ASSERT_EQ(on.tensors.size(), off.tensors.size());
          for (const auto& [name, tensor] : off.tensors) EXPECT_TRUE(at::equal(on.tensors.at(name), tensor)) << name;
        }
      }
    });
  }
}

}  // namespace
}  // namespace metroplex::test::echo_overlap_ranks_test

// Searched schedules: never longer than a fixed one, within the limits, and as short as any order where all can be
// tried.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "plan/schedule_search.h"
#include "plan/schedules/registry.h"
#include "plan/table_writer.h"
#include "plan/verify.h"

namespace metroplex::plan::schedule_search_test {
namespace {

class RandomRequests {
 public:
  explicit RandomRequests(unsigned seed) : random_(seed) {}
  int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  SearchRequest next(int most_stages, int most_microbatches) {
    SearchRequest request;
    request.num_stages = number(2, most_stages);
    request.num_microbatches = number(1, most_microbatches);
    request.times = {0.1 * number(5, 20), 0.1 * number(5, 20), 0.1 * number(1, 20), 0.1 * number(0, 5)};
    for (int rank = 0; rank < request.num_stages; ++rank) {
      request.times.scale.push_back(0.1 * number(8, 15));
      request.live_limits.push_back(number(1, request.num_stages + 1));
    }
    return request;
  }

 private:
  std::mt19937 random_;
};

TEST(ScheduleSearch, IsNeverLongerThanAFixedSchedule) {
  RandomRequests requests(48);
  for (int i = 0; i < 1000; ++i) {
    SearchRequest request = requests.next(5, 8);
    request.steps = 200;
    request.num_chunks = i % 3;  // 0: either
    const FoundSchedule found = search_schedule(request);
    for (const FoundSchedule& fixed : fixed_schedules(request)) EXPECT_LE(found.length, fixed.length);
    const VerifyReport report = verify(found.table);
    for (size_t rank = 0; rank < request.live_limits.size(); ++rank)
      EXPECT_LE(report.peak_live_activations[rank], request.live_limits[rank] * found.table.num_chunks);
  }
}

// Calls `visit` with every order of one rank's actions in which microbatches are first in, first out.
void for_each_order(int microbatches, int limit, const std::function<void(const std::vector<Action>&)>& visit) {
  std::vector<Action> order;
  int done[3] = {0, 0, 0};
  const std::function<void()> extend = [&] {
    if (done[2] == microbatches) return visit(order);
    const int most[3] = {std::min(microbatches, done[2] + limit), done[0], done[1]};
    for (const int kind : {0, 1, 2}) {
      if (done[kind] == most[kind]) continue;
      order.push_back({static_cast<ActionKind>(kind), done[kind]++, 0, -1, -1});
      extend();
      order.pop_back();
      --done[kind];
    }
  };
  extend();
}

double shortest_of_all(const SearchRequest& request) {
  PipelineTable table = make_table({request.num_stages, 1, request.num_microbatches}, "all");
  double shortest = std::numeric_limits<double>::infinity();
  const std::function<void(size_t)> choose = [&](size_t rank) {
    if (rank == table.ranks.size()) {
      if (const auto length = try_length(table, request.times)) shortest = std::min(shortest, *length);
      return;
    }
    for_each_order(request.num_microbatches, request.live_limits[rank], [&](const std::vector<Action>& order) {
      table.ranks[rank] = order;
      choose(rank + 1);
    });
  };
  choose(0);
  return shortest;
}

// Lengths are sums of at most 54 times and hops, below 100 together: 54 x 100 x 2^-53 = 6e-13.
TEST(ScheduleSearch, EqualsExhaustiveSearchOfSmallTables) {
  RandomRequests requests(49);
  for (int i = 0; i < 60; ++i) {
    SearchRequest request = requests.next(3, 3);
    request.num_chunks = 1;
    EXPECT_NEAR(search_schedule(request).length, shortest_of_all(request), 1e-12)
        << "p " << request.num_stages << " m " << request.num_microbatches << " case " << i;
  }
}

TEST(ScheduleSearch, BuildsATableForTheTimesOfTheConfig) {
  ScheduleRequest request{4, 1, 9};
  request.times = {1, 1.5, 1, 0.1, {1, 1, 1, 1.4}};
  const PipelineTable table = build_schedule("searched", request);
  EXPECT_EQ(table.name, "searched");
  EXPECT_TRUE(table.splits_backward());
  EXPECT_LE(step_length(table, request.times), step_length(build_schedule("zb_h1", {4, 1, 9}), request.times));
  // Other times have another order.
  ScheduleRequest even = request;
  even.times = {};
  EXPECT_LT(step_length(table, request.times), step_length(build_schedule("searched", even), request.times));
  // Microbatches of a kind and chunk stay in order.
  for (const auto& actions : table.ranks) {
    std::map<ActionKind, int> next;
    for (const Action& action : actions) {
      if (!is_compute(action.kind)) continue;
      EXPECT_EQ(action.microbatch, next[action.kind]++);
    }
  }
  request.num_chunks = 2;
  EXPECT_TRUE(build_schedule("searched", request).v_shaped);
}

}  // namespace
}  // namespace metroplex::plan::schedule_search_test

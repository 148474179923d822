// Prefetch of microbatches during a step.
#include "run/batches_ahead.h"

#include <gtest/gtest.h>

namespace metroplex::run::batches_ahead_test {
namespace {

RunData::BatchRequest of_iteration(int64_t iteration) { return {2, 8 * iteration, iteration, kTrain}; }

struct Fetches {
  std::vector<int64_t> made;
  int64_t ends_at = 100;
  BatchPrefetcher ahead{[this](const RunData::BatchRequest& wanted) {
    MPX_CHECK(wanted.iteration < ends_at, "data", "ended");
    made.push_back(wanted.iteration);
    return std::vector<nn::Microbatch>(static_cast<size_t>(wanted.count));
  }};
};

TEST(BatchesAhead, AreFetchedOnceWhereTheyWereBegunAndElseWhenTheyAreTaken) {
  Fetches fetches;
  EXPECT_EQ(fetches.ahead.take(of_iteration(0)).size(), 2u);
  fetches.ahead.begin(of_iteration(1));
  EXPECT_EQ(fetches.made, (std::vector<int64_t>{0, 1})) << "before they are taken";
  EXPECT_EQ(fetches.ahead.take(of_iteration(1)).size(), 2u);
  EXPECT_EQ(fetches.ahead.take(of_iteration(2)).size(), 2u);
  EXPECT_EQ(fetches.made, (std::vector<int64_t>{0, 1, 2}));
}

TEST(BatchesAhead, FailWhenTheyAreTakenSoThatTheStepUnderWayIsToldFirst) {
  Fetches fetches;
  fetches.ends_at = 1;
  fetches.ahead.take(of_iteration(0));
  EXPECT_NO_THROW(fetches.ahead.begin(of_iteration(1)));
  EXPECT_THROW(fetches.ahead.take(of_iteration(1)), base::Error);
}

TEST(BatchesAhead, OfAnotherStepAreOurMistake) {
  Fetches fetches;
  fetches.ahead.begin(of_iteration(1));
  EXPECT_ANY_THROW(fetches.ahead.take(of_iteration(2)));
}

}  // namespace
}  // namespace metroplex::run::batches_ahead_test

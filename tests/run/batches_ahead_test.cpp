// Prefetch of microbatches during a step.
#include "run/batches_ahead.h"

#include <gtest/gtest.h>

namespace metroplex::run::batches_ahead_test {
namespace {

RunData::Wanted of_iteration(int64_t iteration) { return {2, 8 * iteration, iteration, kTrain}; }

struct Fetches {
  std::vector<int64_t> made;
  int64_t ends_at = 100;
  BatchesAhead ahead{[this](const RunData::Wanted& wanted) {
    MPX_CHECK(wanted.iteration < ends_at, "data", "ended");
    made.push_back(wanted.iteration);
    return std::vector<nn::Microbatch>(static_cast<size_t>(wanted.count));
  }};
};

TEST(BatchesAhead, AreFetchedOnceWhereTheyWereBegunAndElseWhenTheyAreTaken) {
  Fetches f;
  EXPECT_EQ(f.ahead.take(of_iteration(0)).size(), 2u);
  f.ahead.begin(of_iteration(1));
  EXPECT_EQ(f.made, (std::vector<int64_t>{0, 1})) << "before they are taken";
  EXPECT_EQ(f.ahead.take(of_iteration(1)).size(), 2u);
  EXPECT_EQ(f.ahead.take(of_iteration(2)).size(), 2u);
  EXPECT_EQ(f.made, (std::vector<int64_t>{0, 1, 2}));
}

TEST(BatchesAhead, FailWhenTheyAreTakenSoThatTheStepUnderWayIsToldFirst) {
  Fetches f;
  f.ends_at = 1;
  f.ahead.take(of_iteration(0));
  EXPECT_NO_THROW(f.ahead.begin(of_iteration(1)));
  EXPECT_THROW(f.ahead.take(of_iteration(1)), base::Error);
}

TEST(BatchesAhead, OfAnotherStepAreOurMistake) {
  Fetches f;
  f.ahead.begin(of_iteration(1));
  EXPECT_ANY_THROW(f.ahead.take(of_iteration(2)));
}

}  // namespace
}  // namespace metroplex::run::batches_ahead_test

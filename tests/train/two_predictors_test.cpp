// The prediction derived from the real layers against the one by formula.
#include "train/memory_cases.h"
#include "train/trace.h"

namespace metroplex::test {
namespace {

void compare(const config::Config& config, const MemoryCase& c) {
  const int ranks = static_cast<int>(c.cut.ranks());
  for (int rank = 0; rank < ranks; ++rank) {
    SCOPED_TRACE(c.name + " rank " + std::to_string(rank));
    const plan::MemoryPrediction old = plan::predict_memory({config, ranks, rank, c.vocab, 0});
    const plan::MemoryPrediction now = train::predict_memory({config, ranks, rank, c.vocab});
    EXPECT_EQ(now.use.parameters, old.use.parameters);
    EXPECT_EQ(now.use.gradients, old.use.gradients);
    EXPECT_EQ(now.use.main_parameters, old.use.main_parameters);
    EXPECT_EQ(now.use.moments, old.use.moments);
    EXPECT_EQ(now.use.host, old.use.host);
    EXPECT_EQ(now.use.activations, old.use.activations);
    EXPECT_EQ(now.borders, old.borders);
    EXPECT_EQ(now.gathered, old.gathered);
    EXPECT_EQ(now.use.communication, old.use.communication);
    EXPECT_EQ(now.batches, old.batches);
  }
}

TEST(TwoPredictors, SayTheSameOfEveryKind) {
  for (const MemoryCase& c : kept_cases()) compare(kept_config(c), c);
  for (const MemoryCase& c : peak_cases()) compare(peak_config(c), c);
}

}  // namespace
}  // namespace metroplex::test

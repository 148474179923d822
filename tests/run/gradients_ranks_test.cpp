// Messages for gradients that are partial sums on several ranks.
#include "comm/backends/counting.h"
#include "run/support.h"

namespace metroplex::test::gradients_ranks_test {
namespace {

// All-reduces of the tensor-parallel ranks in one step with sequence parallelism.
int64_t all_reduces(int64_t num_layers) {
  config::Config config = small_gpt();
  config.model.num_layers = num_layers;
  config = cut(config, {.tp = 2, .sp = true});
  const auto traffic = std::make_shared<comm::Traffic>();
  comm::ThreadsOptions options{std::chrono::seconds(60)};
  options.traffic = traffic;
  comm::run_threads(2, topology::RankGrid(2, config.parallel), options, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    comm::barrier(world.groups().world);
    if (world.rank() == 0) traffic->clear();
    comm::barrier(world.groups().world);
    step_at(*assembly, 0);
  });
  return traffic->of("tp", "all_reduce").calls;
}

TEST(SharedGradients, OfNormsAndBiasesTravelTogetherHoweverManyThereAre) {
  const int64_t of_two = all_reduces(2);
  EXPECT_GT(of_two, 0);
  EXPECT_EQ(all_reduces(4), of_two);
}

}  // namespace
}  // namespace metroplex::test::gradients_ranks_test

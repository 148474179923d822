// Calls and bytes of every data-parallel collective of one step, against the formulas (docs/optimizer.md).
#include "comm/backends/counting.h"
#include "run/support.h"

namespace metroplex::test::zero_traffic_ranks_test {
namespace {

constexpr const char* kStrategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

struct Counted {
  comm::Traffic::Count all_reduce, reduce_scatter, all_gather;
  int64_t ranks = 0, buckets = 0, padded = 0, segments = 0;
};

// The second step of a run: the first one may still gather parameters after assembly.
Counted measure_step(config::Config config, int stage, int64_t microbatches) {
  const TestLayout layout{1, 1, 1, 4, false};
  config.parallel.data_parallel_sharding_strategy = kStrategies[stage];
  config.precision.params_dtype = "fp32";
  config.train.global_batch_size = 4 * microbatches;
  config = cut(config, layout);
  Counted counted;
  const auto traffic = std::make_shared<comm::Traffic>();
  comm::ThreadsOptions options{std::chrono::seconds(60)};
  options.traffic = traffic;
  comm::run_threads(4, topology::RankGrid(4, config.parallel), options, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    step_at(*assembly, 0);
    assembly->model.families.finish_gathers();
    comm::barrier(world.groups().world);
    if (world.rank() == 0) traffic->clear();
    comm::barrier(world.groups().world);
    step_at(*assembly, 1);
    assembly->model.families.finish_gathers();
    comm::barrier(world.groups().world);
    if (world.rank() != 0) return;
    const distributed::FlatLayout& layout_of = assembly->model.families.all().front().gradients->layout();
    counted.buckets = static_cast<int64_t>(layout_of.buckets().size());
    counted.padded = layout_of.numel();
    counted.segments = static_cast<int64_t>(assembly->model.stages[0]->blocks().size());
    counted.ranks = 4;
    counted.all_reduce = traffic->of("dp-cp", "all_reduce");
    counted.reduce_scatter = traffic->of("dp-cp", "reduce_scatter");
    counted.all_gather = traffic->of("dp-cp", "all_gather");
  });
  return counted;
}

// Sharded state is also summed over the group: norm, zeros and overflow, three doubles.
constexpr int64_t kSums = 3 * 8;

void expect(const Counted& counted, const comm::Traffic::Count& got, int64_t calls, int64_t bytes, const char* what) {
  EXPECT_EQ(got.calls, counted.ranks * calls) << what;
  EXPECT_EQ(got.bytes, counted.ranks * bytes) << what;
}

TEST(ZeroTraffic, IsThatOfTheFormulas) {
  config::Config config = small_llama();
  config.model.untie_embeddings_and_output_weights = true;
  for (const int64_t m : {1, 3}) {
    const Counted zero0 = measure_step(config, 0, m);
    expect(zero0, zero0.all_reduce, zero0.buckets, 4 * zero0.padded, "ZeRO-0: every gradient once");
    expect(zero0, zero0.reduce_scatter, 0, 0, "ZeRO-0");
    expect(zero0, zero0.all_gather, 0, 0, "ZeRO-0");
    const Counted zero1 = measure_step(config, 1, m);
    expect(zero1, zero1.all_reduce, 1, kSums, "ZeRO-1: the norm");
    expect(zero1, zero1.reduce_scatter, zero1.buckets, 4 * zero1.padded, "ZeRO-1: every gradient once");
    expect(zero1, zero1.all_gather, zero1.buckets, 4 * zero1.padded, "ZeRO-1: every parameter once");
    const Counted zero2 = measure_step(config, 2, m);
    expect(zero2, zero2.all_reduce, 1, kSums, "ZeRO-2: the norm");
    expect(zero2, zero2.reduce_scatter, m * zero2.buckets, m * 4 * zero2.padded, "ZeRO-2: each microbatch");
    expect(zero2, zero2.all_gather, zero2.buckets, 4 * zero2.padded, "ZeRO-2: every parameter once");
    const Counted zero3 = measure_step(config, 3, m);
    EXPECT_EQ(zero3.buckets, zero3.segments) << "a unit a segment";
    expect(zero3, zero3.all_reduce, 1, kSums, "ZeRO-3: the norm");
    expect(zero3, zero3.reduce_scatter, m * zero3.buckets, m * 4 * zero3.padded, "ZeRO-3: each microbatch");
    expect(zero3, zero3.all_gather, 2 * m * zero3.buckets, 2 * m * 4 * zero3.padded, "ZeRO-3: forward and backward");
  }
}

}  // namespace
}  // namespace metroplex::test::zero_traffic_ranks_test

// Half gradients that travel in their own format and are summed in fp32 (GradBufferOptions::fp32_sums).
#include "comm/backends/counting.h"
#include "distributed/grad_buffer.h"
#include "distributed/tools.h"
#include "support/run_ranks.h"

namespace metroplex::test::fp32_sums_ranks_test {
namespace {

constexpr int kMicrobatches = 2;

struct Form {
  at::ScalarType dtype = at::kBFloat16;
  bool transient = false, overlap = true;
};

std::vector<nn::Param> make_params(at::ScalarType dtype) {
  std::vector<nn::Param> params;
  for (const int64_t size : {700, 130, 900, 64})
    params.push_back(make_param("p" + std::to_string(params.size()), values({size}, 0, dtype)));
  return params;
}

std::unique_ptr<distributed::GradBuffer> make_buffer(std::vector<nn::Param>& params, const comm::Group& dp,
                                                     const Form& form) {
  distributed::FlatLayoutOptions layout;
  layout.bucket_size = 1000;
  layout.sharded = true, layout.num_shards = dp.size(), layout.index = dp.index();
  return std::make_unique<distributed::GradBuffer>(
      std::make_shared<distributed::FlatLayout>(pointers(params), layout), distributed::DataParallel{dp, {}},
      distributed::GradBufferOptions{
          .dtype = form.dtype, .overlap = form.overlap, .transient_buckets = form.transient, .fp32_sums = true});
}

at::Tensor make_gradient(const nn::Param& param, int rank, int microbatch) {
  return values({param.numel()}, 40 * static_cast<int>(param.numel()) + 5 * rank + microbatch, param.scalar_type());
}

void run_step(distributed::GradBuffer& buffer, std::vector<nn::Param>& params, int rank) {
  buffer.begin_step(kMicrobatches);
  for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
    for (auto param = params.rbegin(); param != params.rend(); ++param)
      param->accumulate([&](at::Tensor& grad) { grad.add_(make_gradient(*param, rank, microbatch)); });
  }
  buffer.finish();
}

// The fp32 sum over the ranks in their order, rounded once.
at::Tensor sum_ranks(int ranks, const std::function<at::Tensor(int rank)>& make) {
  at::Tensor sum = make(0).to(at::kFloat);
  for (int rank = 1; rank < ranks; ++rank) sum = sum + make(rank).to(at::kFloat);
  return sum.to(make(0).scalar_type());
}

// Permanent buckets are reduced after the last microbatch, transient ones after each.
at::Tensor expected_gradient(const nn::Param& param, int ranks, bool transient) {
  const auto of = [&](int microbatch) {
    return [&, microbatch](int rank) { return make_gradient(param, rank, microbatch); };
  };
  if (transient) return sum_ranks(ranks, of(0)) + sum_ranks(ranks, of(1));
  return sum_ranks(ranks, [&](int rank) { return make_gradient(param, rank, 0) + make_gradient(param, rank, 1); });
}

TEST(Fp32SumsRanks, AreRoundedOnceBitForBit) {
  for (const int ranks : {2, 3, 4}) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      for (const int form : {0, 1, 2, 3}) {
        const Form how{dtype, (form & 1) != 0, (form & 2) != 0};
        SCOPED_TRACE(base::concat(ranks, " ranks, ", at::toString(dtype), how.transient ? ", transient" : "",
                                  how.overlap ? ", overlapped" : ""));
        run_ranks(ranks, {.dp = ranks}, [&](const comm::World& world) {
          std::vector<nn::Param> params = make_params(dtype);
          const auto buffer = make_buffer(params, world.groups().dp_cp, how);
          ASSERT_GT(buffer->layout().buckets().size(), 1u);
          for (int step = 0; step < 2; ++step) {
            run_step(*buffer, params, world.rank());
            EXPECT_EQ(buffer->transient_bytes(), 0);
            auto gradient = buffer->own_gradients().begin();
            for (const distributed::OwnRange& own : buffer->layout().own_pieces()) {
              const at::Tensor whole = expected_gradient(*own.param, ranks, how.transient);
              EXPECT_TRUE(at::equal(*gradient++, whole.narrow(0, own.begin, own.size()))) << own.param->name;
            }
          }
        });
      }
    }
  }
}

// An exchange sends the bytes of a reduce-scatter: each bucket once, in its own format.
TEST(Fp32SumsRanks, SendEachBucketOnceInItsFormat) {
  for (const bool transient : {false, true}) {
    const auto traffic = std::make_shared<comm::Traffic>();
    int64_t elements = 0, buckets = 0;
    run_ranks(2, {.dp = 2},
              [&](const comm::World& world) {
                std::vector<nn::Param> params = make_params(at::kBFloat16);
                const auto buffer = make_buffer(params, world.groups().dp_cp, {.transient = transient});
                run_step(*buffer, params, world.rank());
                if (world.rank() > 0) return;
                elements = buffer->layout().numel(),
                buckets = static_cast<int64_t>(buffer->layout().buckets().size());
              },
              {.traffic = traffic});
    const int64_t times = transient ? kMicrobatches : 1;
    EXPECT_EQ(traffic->of("dp-cp", "all_to_all").bytes,
              2 * times * elements * 2);  // ranks x times x elements x 2 bytes
    EXPECT_EQ(traffic->of("dp-cp", "all_to_all").calls, 2 * times * buckets);
    EXPECT_EQ(traffic->of("dp-cp", "reduce_scatter").calls, 0);
  }
}

// A bucket in reduction has a received copy and an fp32 sum of the own shard. The next bucket frees them.
TEST(Fp32SumsRanks, OneReductionIsInFlight) {
  run_ranks(2, {.dp = 2}, [](const comm::World& world) {
    std::vector<nn::Param> params = make_params(at::kBFloat16);
    const auto buffer = make_buffer(params, world.groups().dp_cp, {});
    const std::vector<distributed::FlatBucket>& buckets = buffer->layout().buckets();
    buffer->begin_step(1);
    for (const distributed::FlatBucket& bucket : buckets) {
      for (const size_t param : bucket.params) params[param].accumulate([](at::Tensor& grad) { grad.add_(1); });
      EXPECT_EQ(buffer->transient_bytes(), (bucket.end - bucket.begin) * 2 + bucket.own_size * 4);
    }
    buffer->finish();
    EXPECT_EQ(buffer->transient_bytes(), 0);
  });
}

}  // namespace
}  // namespace metroplex::test::fp32_sums_ranks_test

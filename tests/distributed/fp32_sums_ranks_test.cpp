// Half gradients that travel in their own format and are summed in fp32 (GradBufferOptions::fp32_sums).
#include <algorithm>
#include <cstring>

#include "comm/backends/counting.h"
#include "distributed/grad_buffer.h"
#include "distributed/tools.h"
#include "kernels/optimizer_step.h"
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

// A bucket in reduction has a received copy of its size. The next bucket frees it.
TEST(Fp32SumsRanks, OneReductionIsInFlight) {
  run_ranks(2, {.dp = 2}, [](const comm::World& world) {
    std::vector<nn::Param> params = make_params(at::kBFloat16);
    const auto buffer = make_buffer(params, world.groups().dp_cp, {});
    const std::vector<distributed::FlatBucket>& buckets = buffer->layout().buckets();
    buffer->begin_step(1);
    for (const distributed::FlatBucket& bucket : buckets) {
      for (const size_t param : bucket.params) params[param].accumulate([](at::Tensor& grad) { grad.add_(1); });
      EXPECT_EQ(buffer->transient_bytes(), (bucket.end - bucket.begin) * 2);
    }
    buffer->finish();
    EXPECT_EQ(buffer->transient_bytes(), 0);
  });
}

kernels::GradientSums add_sums(const at::Tensor& gradient, const at::Tensor& sums) {
  kernels::GradientSums total;
  const at::Tensor& read = sums.defined() ? sums : gradient;
  kernels::add_gradient_sums({{read.const_data_ptr(), kernels::Number::bf16, gradient.numel(), true, sums.defined()}},
                             {&total, nullptr});
  return total;
}

int64_t count_defined(const std::vector<at::Tensor>& sums) {
  return std::count_if(sums.begin(), sums.end(), [](const at::Tensor& one) { return one.defined(); });
}

// The last reduction also computes the sums for the gradient norm: bit for bit those of the gradients, which span
// several blocks. They are defined from the end of a step to the beginning of the next one.
TEST(Fp32SumsRanks, GradientSumsAreThoseOfTheGradients) {
  for (const bool transient : {false, true}) {
    SCOPED_TRACE(transient ? "transient" : "permanent");
    run_ranks(2, {.dp = 2}, [&](const comm::World& world) {
      std::vector<nn::Param> params;
      for (const int64_t size : {3 * kernels::kSumsBlock + 500, int64_t{700}, 5 * kernels::kSumsBlock})
        params.push_back(make_param("p" + std::to_string(params.size()), values({size}, 0, at::kBFloat16)));
      const auto buffer = make_buffer(params, world.groups().dp_cp, {.transient = transient});
      const auto num_shards = static_cast<int64_t>(buffer->own_gradients().size());
      EXPECT_EQ(count_defined(buffer->own_sums()), 0);
      for (int step = 0; step < 2; ++step) {
        run_step(*buffer, params, world.rank() + step);
        const std::vector<at::Tensor> sums = buffer->own_sums();
        ASSERT_EQ(count_defined(sums), num_shards);
        for (size_t i = 0; i < sums.size(); ++i) {
          const at::Tensor& gradient = buffer->own_gradients()[i];
          EXPECT_EQ(sums[i].size(0), kernels::gradient_sums_blocks(gradient.numel()));
          const kernels::GradientSums from_gradient = add_sums(gradient, {}), from_sums = add_sums(gradient, sums[i]);
          EXPECT_EQ(std::memcmp(&from_sums, &from_gradient, sizeof(from_sums)), 0) << i;
          EXPECT_GT(from_sums.sum_of_squares, 0);
        }
        buffer->begin_step(1);
        EXPECT_EQ(count_defined(buffer->own_sums()), 0);
        for (nn::Param& param : params) param.accumulate([](at::Tensor& grad) { grad.add_(1); });
        EXPECT_EQ(count_defined(buffer->own_sums()), 0) << "other ranks' gradients may be missing";
        buffer->finish();
      }
    });
  }
}

// A transient bucket without gradients is not reduced: the gradients are zero, and their sums would be old.
TEST(Fp32SumsRanks, UnusedBucketsHaveNoSums) {
  run_ranks(2, {.dp = 2}, [](const comm::World& world) {
    std::vector<nn::Param> params = make_params(at::kBFloat16);
    params[0].uses_per_microbatch = 0;  // alone in its bucket
    const auto buffer = make_buffer(params, world.groups().dp_cp, {.transient = true});
    buffer->begin_step(1);
    for (nn::Param& param : params) {
      if (param.uses_per_microbatch > 0) param.accumulate([](at::Tensor& grad) { grad.add_(1); });
    }
    buffer->finish();
    const std::vector<at::Tensor> sums = buffer->own_sums();
    EXPECT_GT(count_defined(sums), 0);
    for (size_t i = 0; i < sums.size(); ++i) {
      const bool is_unused = buffer->layout().own_pieces()[i].param == &params[0];
      EXPECT_EQ(sums[i].defined(), !is_unused) << i;
    }
  });
}

// Gradients that change after the reduction have no sums: partial and shared ones, and all if replicas add theirs.
TEST(Fp32SumsRanks, ChangingGradientsHaveNoSums) {
  run_ranks(4, {.tp = 2, .dp = 2}, [](const comm::World& world) {
    const comm::Group &shard = world.groups().dp_cp, &replicas = world.groups().tp;
    for (const bool has_replicas : {false, true}) {
      std::vector<nn::Param> params = make_params(at::kBFloat16);
      params[0].placement.partial = topology::Axis::tp;
      params[1].placement.shared = "shared";
      distributed::FlatLayoutOptions layout;
      layout.sharded = true, layout.num_shards = shard.size(), layout.index = shard.index();
      distributed::GradBuffer buffer(std::make_shared<distributed::FlatLayout>(pointers(params), layout),
                                     distributed::DataParallel{shard, has_replicas ? replicas : comm::Group()},
                                     distributed::GradBufferOptions{.dtype = at::kBFloat16, .fp32_sums = true});
      run_step(buffer, params, world.rank());
      const std::vector<at::Tensor> sums = buffer.own_sums();
      for (size_t i = 0; i < sums.size(); ++i) {
        const nn::Param* const param = buffer.layout().own_pieces()[i].param;
        EXPECT_EQ(sums[i].defined(), !has_replicas && param != &params[0] && param != &params[1]) << param->name;
      }
    }
  });
}

}  // namespace
}  // namespace metroplex::test::fp32_sums_ranks_test

// Position of gradients, time of their reduction, and detection of a wrong number of gradients.
#include "distributed/grad_buffer.h"

#include "comm/backends/counting.h"
#include "distributed/tools.h"
#include "plan/buckets.h"
#include "support/run_ranks.h"

namespace metroplex::test::grad_buffer_ranks_test {
namespace {

std::vector<nn::Param> make_params(const std::vector<int64_t>& sizes) {
  std::vector<nn::Param> params;
  for (size_t i = 0; i < sizes.size(); ++i) {
    params.push_back(make_param("p" + std::to_string(i), values({sizes[i]}, static_cast<int>(i))));
  }
  return params;
}

struct Setup {
  int64_t bucket_size = 0;
  bool overlap = true;
};

// Without sharding: every rank of `dp` holds all gradients.
std::unique_ptr<distributed::GradBuffer> make_buffer(std::vector<nn::Param>& params, const comm::Group& dp,
                                                     const Setup& setup) {
  distributed::FlatLayoutOptions layout;
  layout.bucket_size = setup.overlap ? setup.bucket_size : 0;
  distributed::GradBufferOptions options;
  options.dtype = params[0].data.scalar_type();
  options.overlap = setup.overlap;
  return std::make_unique<distributed::GradBuffer>(
      std::make_shared<distributed::FlatLayout>(pointers(params), layout),
      distributed::DataParallel{comm::Group(), dp}, options);
}

void add(nn::Param& param, double value) {
  param.accumulate([value](at::Tensor& grad) { grad.add_(value); });
}

// Two ranks, of which only the first exists: counts its calls; no data move.
struct CountedGroup {
  std::shared_ptr<comm::Traffic> traffic = std::make_shared<comm::Traffic>();
  comm::Group group{{"dp", comm::Purpose::gradients, {0, 1}}, 0, comm::make_counting_backend("dp", traffic)};
  comm::Traffic::Count reduced() const { return traffic->of("dp", "all_reduce"); }
};

TEST(GradBuffer, GradientsAreViewsOfOneBufferLastParameterFirst) {
  std::vector<nn::Param> params{make_param("a", values({2, 3}, 0)), make_param("b", values({5}, 1)),
                                make_param("c", values({7}, 2))};
  const auto buffer = make_buffer(params, comm::Group(), {0});
  ASSERT_EQ(buffer->storage().numel(), 18);
  params[0].main_grad.fill_(1);
  params[1].main_grad.fill_(2);
  params[2].main_grad.fill_(3);
  EXPECT_EQ(params[0].main_grad.sizes().vec(), (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(at::equal(buffer->storage(), at::cat({at::full({7}, 3.0, at::kDouble), at::full({5}, 2.0, at::kDouble),
                                                    at::full({6}, 1.0, at::kDouble)})));
  EXPECT_EQ(buffer->layout().buckets().size(), 1u);
}

TEST(GradBuffer, AFloatBufferServesFloatParameters) {
  std::vector<nn::Param> params{make_param("a", values({4}, 0, at::kFloat))};
  const auto buffer = make_buffer(params, comm::Group(), {});
  EXPECT_EQ(params[0].main_grad.scalar_type(), at::kFloat);
}

TEST(GradBuffer, EachBucketIsReducedWhenItsLastGradientIsIn) {
  const CountedGroup dp;
  std::vector<nn::Param> params = make_params({10, 8, 30, 5, 6});
  const auto buffer = make_buffer(params, dp.group, {11});
  ASSERT_EQ(buffer->layout().buckets().size(), 3u);  // {p4, p3}, {p2}, {p1, p0}: 11, 30 and 18 elements
  constexpr int kMicrobatches = 3;
  buffer->begin_step(kMicrobatches);
  for (int m = 0; m + 1 < kMicrobatches; ++m) {
    for (size_t i = params.size(); i-- > 0;) add(params[i], 1);
  }
  EXPECT_EQ(dp.reduced().calls, 0) << "before the last microbatch nothing is final";
  std::vector<int64_t> calls, bytes;
  for (size_t i = params.size(); i-- > 0;) {
    add(params[i], 1);
    calls.push_back(dp.reduced().calls);
    bytes.push_back(dp.reduced().bytes);
  }
  EXPECT_EQ(calls, (std::vector<int64_t>{0, 1, 2, 2, 3}));
  EXPECT_EQ(bytes, (std::vector<int64_t>{0, 8 * 11, 8 * 41, 8 * 41, 8 * 59}));
  buffer->finish();
  EXPECT_EQ(dp.reduced().calls, 3) << "and nothing twice";
}

TEST(GradBuffer, TheNumberOfReductionsAndTheirBytesAreThePlans) {
  for (const int64_t bucket_size : {1, 7, 40, 1000}) {
    const std::vector<int64_t> sizes{12, 3, 9, 9, 1, 24, 2};
    const CountedGroup dp;
    std::vector<nn::Param> params = make_params(sizes);
    std::vector<plan::BucketParam> bucket_params;
    for (const int64_t size : sizes) bucket_params.push_back({size, false});
    plan::BucketOptions layout;
    layout.bucket_size = bucket_size;
    const plan::BucketPlan plan = plan::plan_buckets(bucket_params, layout);
    const auto buffer = make_buffer(params, dp.group, {bucket_size});
    for (int step = 1; step <= 2; ++step) {
      buffer->begin_step(1);
      for (nn::Param& param : params) add(param, 1);
      EXPECT_EQ(dp.reduced().calls, step * static_cast<int64_t>(plan.buckets.size()))
          << "bucket size " << bucket_size;
      EXPECT_EQ(dp.reduced().bytes, step * plan.num_elements * 8);
      buffer->finish();
    }
  }
}

TEST(GradBuffer, WithoutOverlapEverythingIsReducedAtTheEndAtOnce) {
  const CountedGroup dp;
  std::vector<nn::Param> params = make_params({10, 20, 30});
  const auto buffer = make_buffer(params, dp.group, {11, false});
  buffer->begin_step(1);
  for (nn::Param& param : params) add(param, 1);
  EXPECT_EQ(dp.reduced().calls, 0);
  buffer->finish();
  EXPECT_EQ(dp.reduced().calls, 1);
  EXPECT_EQ(dp.reduced().bytes, 8 * 60);
}

TEST(GradBuffer, AParameterUsedTwiceAMicrobatchWaitsForBothUses) {
  const CountedGroup dp;
  std::vector<nn::Param> params = make_params({4, 4});
  params[0].uses_per_microbatch = 2;
  const auto buffer = make_buffer(params, dp.group, {4});
  buffer->begin_step(2);
  for (int use = 0; use < 3; ++use) add(params[0], 1);
  EXPECT_EQ(dp.reduced().calls, 0);
  add(params[0], 1);
  EXPECT_EQ(dp.reduced().calls, 1);
}

TEST(GradBuffer, RanksGetTheSumOfTheirGradients) {
  for (const bool overlap : {true, false}) {
    run_ranks(4, {.dp = 4}, [&](const comm::World& world) {
      std::vector<nn::Param> params = make_params({5, 3, 8});
      const auto buffer = make_buffer(params, world.groups().dp_cp, {6, overlap});
      for (int step = 0; step < 3; ++step) {
        buffer->begin_step(2);
        for (int m = 0; m < 2; ++m) {
          for (size_t i = params.size(); i-- > 0;) {
            add(params[i], static_cast<double>((world.rank() + 1) * (step + 1)) + static_cast<double>(i));
          }
        }
        buffer->finish();
        for (size_t i = 0; i < params.size(); ++i) {
          const double sum = 2 * (10.0 * (step + 1) + 4.0 * static_cast<double>(i));
          EXPECT_TRUE(at::equal(params[i].main_grad, at::full_like(params[i].main_grad, sum)))
              << "step " << step << " parameter " << i;
        }
      }
    });
  }
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::logic_error& error) { return error.what(); }
  return "nothing was thrown";
}

TEST(GradBuffer, AMissingGradientIsNoticedByName) {
  std::vector<nn::Param> params = make_params({4, 4});
  const auto buffer = make_buffer(params, comm::Group(), {0});
  buffer->begin_step(2);
  add(params[0], 1);
  add(params[1], 1);
  add(params[1], 1);
  const std::string message = refusal([&] { buffer->finish(); });
  EXPECT_NE(message.find("p0"), std::string::npos) << message;
}

TEST(GradBuffer, AGradientTooManyIsNoticedByName) {
  std::vector<nn::Param> params = make_params({4, 4});
  const auto buffer = make_buffer(params, comm::Group(), {0});
  buffer->begin_step(1);
  add(params[1], 1);
  const std::string message = refusal([&] { add(params[1], 1); });
  EXPECT_NE(message.find("p1"), std::string::npos) << message;
}

// Values from before a step never enter its gradients: neither at the first write, nor at an addition, nor for a
// parameter that backward does not reach.
TEST(GradBuffer, AStepBeginsWithoutAPassOverItsGradients) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
    std::vector<nn::Param> params;
    for (const char* name : {"written", "added", "unreached"})
      params.push_back(make_param(name, values({4}, 0, type)));
    const auto layout = std::make_shared<distributed::FlatLayout>(pointers(params), distributed::FlatLayoutOptions{});
    distributed::GradBuffer buffer(layout, {}, {.dtype = at::kFloat});
    for (int step = 0; step < 2; ++step) {
      for (nn::Param& param : params) param.main_grad.fill_(nan);
      buffer.begin_step(2);
      std::vector<bool> adds;
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        params[2].begin_backward();
        params[2].end_backward(1);
        add(params[1], 1);
        params[0].accumulate_or_write([&](at::Tensor& grad, bool adding) {
          adds.push_back(adding);
          adding ? grad.add_(3) : grad.fill_(2);
        });
      }
      buffer.finish();
      // In fp16 each microbatch's gradient is computed separately.
      const bool half = type == at::kHalf;
      EXPECT_EQ(adds, (std::vector<bool>{false, !half}));
      const double sums[] = {half ? 4.0 : 5.0, 2, 0};
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(at::equal(params[i].main_grad, at::full({4}, sums[i], at::kFloat))) << params[i].name;
      }
    }
  }
}

// Adds `value` to `sums` at the first wait.
struct DelayedAdd final : comm::Pending {
  DelayedAdd(at::Tensor its_sums, double its_value) : sums(std::move(its_sums)), value(its_value) {}
  void wait() override { sums.add_(value), ++waits; }
  at::Tensor sums;
  double value;
  int waits = 0;
};
std::shared_ptr<DelayedAdd> add_later(nn::Param& param, double value) {
  std::shared_ptr<DelayedAdd> delayed;
  param.accumulate_async(
      [&](const at::Tensor& sums) {
        delayed = std::make_shared<DelayedAdd>(sums, value);
        return comm::Handle(delayed);
      },
      {});
  return delayed;
}

// For a parameter with two uses per microbatch: added when the second use is reported, before its bucket is reduced.
TEST(GradBuffer, WhatArrivesIsSettledAtTheLastUse) {
  for (const at::ScalarType type : {at::kDouble, at::kHalf}) {
    for (const bool transient : {false, true}) {
      std::vector<nn::Param> params;
      params.push_back(make_param("weight", values({4}, 0, type)));
      nn::Param& param = params[0];
      param.uses_per_microbatch = 2;
      const auto layout =
          std::make_shared<distributed::FlatLayout>(pointers(params), distributed::FlatLayoutOptions{});
      const at::ScalarType sums = type == at::kHalf ? at::kFloat : type;
      distributed::GradBuffer buffer(layout, {}, {.dtype = sums, .transient_buckets = transient});
      for (int step = 0; step < 2; ++step) {
        if (!transient) param.main_grad.fill_(std::numeric_limits<double>::quiet_NaN());
        buffer.begin_step(2);
        for (int microbatch = 0; microbatch < 2; ++microbatch) {
          param.begin_backward();
          add(param, 1.0 / 3);
          const std::shared_ptr<DelayedAdd> delayed = add_later(param, 1.0 / 7);
          EXPECT_FALSE(param.is_synchronized());
          EXPECT_EQ(delayed->waits, 0);
          param.end_backward(2);
          EXPECT_TRUE(param.is_synchronized());
          EXPECT_EQ(delayed->waits, 1);
        }
        buffer.finish();
        // Gradients of fp16 parameters are rounded one by one, and so is their sum.
        const auto rounded = [&](double x) { return at::full({}, x, at::kDouble).to(sums).to(type).item<double>(); };
        const double one = rounded(rounded(1.0 / 3) + rounded(1.0 / 7));
        const at::Tensor got = buffer.own_gradients().at(0);
        if (type == at::kHalf) EXPECT_TRUE(at::equal(got, at::full({4}, 2 * one, sums))) << got;
        else EXPECT_LE((got - 2 * (1.0 / 3 + 1.0 / 7)).abs().max().item<double>(), 0x1p-52);
      }
    }
  }
}

// A captured backward leaves no pending wait to the host, even if a use is still to come.
TEST(GradBuffer, WhatArrivesIsSettledBeforeACapturedBackwardEnds) {
  std::vector<nn::Param> params = make_params({4});
  params[0].uses_per_microbatch = 2;
  const auto buffer = make_buffer(params, comm::Group(), {0});
  buffer->begin_step(1);
  params[0].begin_backward(/*tells=*/false);
  add(params[0], 1);
  const std::shared_ptr<DelayedAdd> delayed = add_later(params[0], 2);
  params[0].end_backward(1);
  EXPECT_EQ(delayed->waits, 1);
  params[0].notify_use();
  params[0].begin_backward();
  params[0].end_backward(1);
  buffer->finish();
  EXPECT_TRUE(at::equal(params[0].main_grad, at::full({4}, 3.0, at::kDouble)));
}

TEST(GradBuffer, NothingIsReducedThatIsStillToCome) {
  for (const bool transient : {false, true}) {
    std::vector<nn::Param> params = make_params({4});
    const auto layout = std::make_shared<distributed::FlatLayout>(pointers(params), distributed::FlatLayoutOptions{});
    distributed::GradBuffer buffer(layout, {}, {.dtype = at::kDouble, .transient_buckets = transient});
    buffer.begin_step(1);
    params[0].begin_backward();
    const std::shared_ptr<DelayedAdd> delayed = add_later(params[0], 2);
    const std::string message = refusal([&] {
      params[0].notify_use();  // a caller that forgets to settle
      buffer.finish();
    });
    EXPECT_NE(message.find("before all of it has arrived"), std::string::npos) << message;
    EXPECT_NE(message.find("p0"), std::string::npos) << message;
  }
}

TEST(GradBuffer, UsesOutsideAStepDoNotCount) {
  std::vector<nn::Param> params = make_params({4});
  {
    const auto buffer = make_buffer(params, comm::Group(), {0});
    add(params[0], 5);
    buffer->begin_step(1);
    add(params[0], 1);
    buffer->finish();
    EXPECT_EQ(params[0].main_grad[0].item<double>(), 1.0);
    add(params[0], 1);
    EXPECT_EQ(params[0].main_grad[0].item<double>(), 2.0);
  }
  EXPECT_TRUE(params[0].on_use.empty()) << "a destroyed buffer is not called";
}

}  // namespace
}  // namespace metroplex::test::grad_buffer_ranks_test

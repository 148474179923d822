// A captured callable: number of calls, copies, and return values, on a fake GPU (fake_cuda.h).
#include "graph/graphed_callable.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "graph/fake_cuda.h"

namespace metroplex::graph::graphed_callable_test {
namespace {

using Tensors = GraphedCallable::Tensors;

struct GraphedCallableTest : testing::TestWithParam<const char*> {
  std::shared_ptr<FakeCuda> gpu = std::string(GetParam()) == "Gpu" ? std::make_shared<FakeCuda>() : nullptr;
  std::unique_ptr<GraphDevice> device = gpu ? make_cuda_graph_device(gpu) : make_graph_device(at::kCPU);
  int calls = 0, barriers = 0;
  // In place, to detect one run too many or too few.
  at::Tensor runs = at::zeros({1}, at::kLong), seen = at::zeros({2, 3}, at::kDouble);

  // Returns 2 x and an undefined tensor.
  GraphedCallable::Callable twice() {
    return [this](const Tensors& in) -> Tensors {
      ++calls;
      const at::Tensor x = in[0], out = at::empty_like(x), all = runs, last = seen;
      const auto work = [=] {
        all.add_(1);
        last.copy_(x);
        out.copy_(2 * x);
      };
      if (gpu) gpu->issue(work);
      else work();
      return {out, at::Tensor()};
    };
  }
  GraphedCallable make(int64_t warmup) {
    return {*device, twice(), {at::zeros({2, 3}, at::kDouble)}, {warmup, nullptr, [this] {
                                                                   if (gpu) gpu->say("barrier");
                                                                   ++barriers;
                                                                 }}};
  }
  int64_t ran() const { return runs.item<int64_t>(); }
};

INSTANTIATE_TEST_SUITE_P(On, GraphedCallableTest, testing::Values("Gpu", "Tape"),
                         [](const auto& info) { return std::string(info.param); });

at::Tensor input(double value) { return at::full({2, 3}, value, at::kDouble); }

TEST_P(GraphedCallableTest, RunsAsItIsThenIsCapturedThenReplayedAndEveryCallRunsOnce) {
  for (const int64_t warmup : {0, 1, 3}) {
    SCOPED_TRACE(warmup);
    calls = barriers = 0;
    runs.zero_();
    GraphedCallable graphed = make(warmup);
    for (int64_t i = 1; i <= warmup + 4; ++i) {
      const Tensors& out = graphed({input(static_cast<double>(i))});
      ASSERT_EQ(out.size(), 2u);
      EXPECT_TRUE(at::equal(out[0], input(2.0 * static_cast<double>(i)))) << i;
      EXPECT_FALSE(out[1].defined());
      EXPECT_TRUE(at::equal(seen, input(static_cast<double>(i))));
      EXPECT_EQ(ran(), i);
      EXPECT_EQ(graphed.captured(), i > warmup);
      EXPECT_EQ(calls, std::min(i, warmup + 1));
      EXPECT_EQ(barriers, i > warmup ? 2 : 0);
    }
    EXPECT_GE(graphed.size().nodes, 1);
  }
}

using GraphedCallableOnGpu = GraphedCallableTest;
INSTANTIATE_TEST_SUITE_P(On, GraphedCallableOnGpu, testing::Values("Gpu"));

TEST_P(GraphedCallableOnGpu, WarmUpRunsBesideTheCurrentStreamAndTheBarriersAreAroundTheCapture) {
  GraphedCallable graphed = make(1);
  gpu->take_log();
  graphed({input(1)});
  EXPECT_EQ(gpu->take_log(), R"(event of 0, 7 waits
current stream 7
current stream 0
event of 7, 0 waits
)");
  graphed({input(1)});
  const std::string log = gpu->take_log();
  EXPECT_EQ(log.find("barrier\n"), 0u) << log;
  EXPECT_LT(log.find("end capture"), log.rfind("barrier\n")) << log;
  EXPECT_LT(log.rfind("begin capture"), log.rfind("end capture")) << log;
  EXPECT_EQ(log.substr(log.size() - 8), "barrier\n") << log;
}

TEST_P(GraphedCallableTest, InputsAreCopiedToWhereTheyWereCapturedButForTheStaticOnes) {
  GraphedCallable graphed = make(0);
  const void* place = graphed.inputs()[0].const_data_ptr();
  const auto version = graphed.inputs()[0]._version();
  at::Tensor mine = input(5);
  graphed({mine});
  mine.fill_(6);
  EXPECT_TRUE(at::equal(graphed.inputs()[0], input(5))) << "the caller's tensor is his";
  graphed({mine});
  EXPECT_TRUE(at::equal(seen, input(6)));
  graphed.inputs()[0].fill_(7);
  graphed(graphed.inputs());
  EXPECT_TRUE(at::equal(seen, input(7)));
  EXPECT_EQ(graphed.inputs()[0].const_data_ptr(), place);
  EXPECT_EQ(graphed.inputs()[0]._version(), version + 3)
      << "two copies and one fill: the static tensor itself is not copied";
}

TEST_P(GraphedCallableTest, InputsOfAnotherFormAreRefusedBeforeAnythingIsWritten) {
  GraphedCallable graphed(
      *device, twice(), {at::zeros({2, 3}, at::kDouble), at::zeros({4}, at::kFloat), at::Tensor()}, {0, nullptr, {}});
  graphed({input(1), at::ones({4}), at::Tensor()});
  const auto refused = [&](const Tensors& inputs, const std::string& name) {
    try {
      graphed(inputs);
      FAIL() << "nothing was thrown for " << name;
    } catch (const base::Error& error) {
      EXPECT_EQ(error.room(), "cuda graph");
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  };
  refused({input(9), at::ones({5}), at::Tensor()}, "input 1 is Float [5], and the captured one Float [4]");
  refused({input(9), at::ones({4}, at::kDouble), at::Tensor()},
          "input 1 is Double [4], and the captured one Float [4]");
  refused({input(9), at::Tensor(), at::Tensor()}, "input 1 is undefined, and the captured one Float [4]");
  refused({input(9), at::ones({4}), at::ones({1})}, "input 2 is Float [1], and the captured one undefined");
  refused({input(9), at::ones({4})}, "2 inputs for a graph of 3");
  refused({at::full({3, 2}, 9.0, at::kDouble), at::ones({4}), at::Tensor()},
          "input 0 is Double [3, 2], and the captured one Double [2, 3]");
  EXPECT_TRUE(at::equal(graphed.inputs()[0], input(1)));
  EXPECT_EQ(ran(), 1);
  graphed({input(9), at::ones({4}), at::Tensor()});
  EXPECT_EQ(ran(), 2);
}

TEST_P(GraphedCallableTest, TheNextReplayOverwritesTheResults) {
  GraphedCallable graphed = make(1);
  const at::Tensor warm = graphed({input(1)})[0];
  const at::Tensor first = graphed({input(2)})[0];
  const at::Tensor second = graphed({input(3)})[0];
  EXPECT_EQ(first.const_data_ptr(), second.const_data_ptr());
  EXPECT_TRUE(at::equal(first, input(6)));
  EXPECT_TRUE(at::equal(warm, input(2))) << "no graph has written it";
}

TEST_P(GraphedCallableTest, AfterAResetTheNextCallCapturesAgain) {
  GraphedCallable graphed = make(2);
  for (int i = 0; i < 4; ++i) graphed({input(1)});
  EXPECT_EQ(calls, 3);
  graphed.reset();
  EXPECT_FALSE(graphed.captured());
  EXPECT_EQ(graphed.size().nodes, 0);
  const at::Tensor out = graphed({input(4)})[0];
  EXPECT_TRUE(graphed.captured());
  EXPECT_EQ(calls, 4) << "captured without another warm-up";
  EXPECT_EQ(barriers, 4);
  EXPECT_EQ(ran(), 5);
  EXPECT_TRUE(at::equal(out, input(8)));
}

TEST_P(GraphedCallableTest, AfterAFailedCaptureTheNextCallTriesAgain) {
  bool fails = true;
  GraphedCallable graphed(*device,
                          [&](const Tensors& in) {
                            if (fails) throw std::runtime_error("not now");
                            return twice()(in);
                          },
                          {at::zeros({2, 3}, at::kDouble)}, {0, nullptr, {}});
  EXPECT_THROW(graphed({input(1)}), std::runtime_error);
  EXPECT_FALSE(graphed.captured());
  fails = false;
  EXPECT_TRUE(at::equal(graphed({input(1)})[0], input(2)));
  EXPECT_TRUE(graphed.captured());
  EXPECT_EQ(ran(), 1);
}

TEST_P(GraphedCallableTest, APoolIsTheGivenOneOrItsOwn) {
  const auto pool = device->make_pool();
  GraphedCallable one(*device, twice(), {input(0)}, {0, pool, {}}),
      other(*device, twice(), {input(0)}, {0, pool, {}});
  GraphedCallable third(*device, twice(), {input(0)}, {0, nullptr, {}});
  EXPECT_EQ(&one.pool(), pool.get());
  EXPECT_EQ(&other.pool(), pool.get());
  EXPECT_NE(&third.pool(), pool.get());
  const at::Tensor a = one({input(1)})[0], b = other({input(2)})[0], c = third({input(3)})[0];
  one({input(4)});
  other({input(5)});
  third({input(6)});
  EXPECT_TRUE(at::equal(a, input(8)));
  EXPECT_TRUE(at::equal(b, input(10)));
  EXPECT_TRUE(at::equal(c, input(12)));
}

// A tensor of one element is not treated as a host number just because another graph created it.
TEST(TapeGraphs, ANumberThatAnotherGraphOfThePoolHasWrittenIsReadAnew) {
  const auto device = make_graph_device(at::kCPU);
  const auto pool = device->make_pool();
  const auto first = device->make_graph(pool), second = device->make_graph(pool);
  const at::Tensor x = input(1), seen = at::zeros({2, 3}, at::kDouble);
  at::Tensor sum;
  capture(*first, [&] { sum = x.sum().reshape({1}); });
  capture(*second, [&] { seen.copy_(x * sum); });
  EXPECT_TRUE(at::equal(seen, input(6)));
  x.fill_(2);
  first->replay();
  second->replay();
  EXPECT_TRUE(at::equal(seen, input(24)));
}

}  // namespace
}  // namespace metroplex::graph::graphed_callable_test

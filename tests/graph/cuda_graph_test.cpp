// CUDA graphs as a list of calls on a fake GPU: their order, the state after an exception, and rejected calls.
#include "graph/cuda_graph.h"

#include <c10/core/AutogradState.h>
#include <gtest/gtest.h>

#include "device/device.h"
#include "graph/fake_cuda.h"

namespace metroplex::graph::cuda_graph_test {
namespace {

bool engine_threads() { return c10::AutogradState::get_tls_state().get_multithreading_enabled(); }

struct CudaGraph : testing::Test {
  std::shared_ptr<FakeCuda> gpu = std::make_shared<FakeCuda>();
  std::unique_ptr<GraphDevice> device = make_cuda_graph_device(gpu);
  std::shared_ptr<GraphPool> pool = device->make_pool();
  std::unique_ptr<Graph> graph = device->make_graph(pool);

  void SetUp() override { gpu->take_log(); }
};

constexpr const char* kAside = R"(event of 0, 7 waits
current stream 7
)";
constexpr const char* kBack = R"(current stream 0
event of 7, 0 waits
)";
constexpr const char* kBegun = R"(graph 1
event of 0, 7 waits
current stream 7
host waits for 7
begin capture of 7 into pool 1
)";
constexpr const char* kGivenUp = R"(discard capture
destroy graph 1
current stream 0
event of 7, 0 waits
)";

TEST(CudaGraphCalls, ACaptureIsTheseCallsInThisOrder) {
  const auto gpu = std::make_shared<FakeCuda>();
  {
    const auto device = make_cuda_graph_device(gpu);
    EXPECT_EQ(device->recorder(), nullptr);
    const auto graph = device->make_graph(device->make_pool());
    device->run_on_capture_stream([&] { gpu->say("  warm-up"); });
    capture(*graph, [&] {
      gpu->say("  work");
      gpu->issue([&] { gpu->say("  kernel"); });
    });
    graph->replay();
    graph->reset();
    gpu->say("reset");
  }
  EXPECT_EQ(gpu->take_log(), R"(stream 7
pool 1
event of 0, 7 waits
current stream 7
  warm-up
current stream 0
event of 7, 0 waits
graph 1
event of 0, 7 waits
current stream 7
host waits for 7
begin capture of 7 into pool 1
  work
end capture
instantiate
host waits for 7
current stream 0
event of 7, 0 waits
launch graph 1 on 0
  kernel
launch graph 1 on 0
  kernel
destroy graph 1
reset
drop pool 1
)");
}

TEST_F(CudaGraph, TwoGraphsOfOnePoolAreCapturedIntoItAndItGoesWithTheLast) {
  auto other = device->make_graph(pool);
  capture(*graph, [] {});
  capture(*other, [] {});
  std::string log = gpu->take_log();
  for (const char* line : {"graph 1\n", "graph 2\n"}) EXPECT_NE(log.find(line), std::string::npos) << line;
  const std::string begin = "begin capture of 7 into pool 1\n";
  EXPECT_NE(log.find(begin, log.find(begin) + 1), std::string::npos) << log;
  pool.reset();
  graph.reset();
  EXPECT_EQ(gpu->take_log(), "destroy graph 1\n");
  other.reset();
  EXPECT_EQ(gpu->take_log(), "destroy graph 2\ndrop pool 1\n");
}

TEST_F(CudaGraph, TheEngineStaysOnTheThreadThatCapturesAndIsAsItWasBehindIt) {
  for (const bool before : {true, false}) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(before);
    device->run_on_capture_stream([] { EXPECT_FALSE(engine_threads()); });
    EXPECT_EQ(engine_threads(), before);
    capture(*graph, [] { EXPECT_FALSE(engine_threads()); });
    EXPECT_EQ(engine_threads(), before);
    graph->reset();
    EXPECT_THROW(capture(*graph, [] { throw std::runtime_error("no"); }), std::runtime_error);
    EXPECT_EQ(engine_threads(), before);
  }
  c10::AutogradState::get_tls_state().set_multithreading_enabled(true);
}

TEST_F(CudaGraph, AnExceptionInsideIsTheOneThatIsToldAndLeavesAnEmptyGraph) {
  try {
    capture(*graph, [&] {
      gpu->issue([] {});
      throw std::runtime_error("the first one");
    });
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) { EXPECT_STREQ(error.what(), "the first one"); }
  EXPECT_EQ(gpu->take_log(), std::string(kBegun) + kGivenUp);
  EXPECT_FALSE(graph->captured());
  EXPECT_EQ(graph->size().nodes, 0);

  int runs = 0;
  capture(*graph, [&] { gpu->issue([&] { ++runs; }); });
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(graph->size().nodes, 1);
}

// The stream cannot be joined after a GPU fault; that second error must not hide the first one.
TEST_F(CudaGraph, AnErrorOnTheWayOutOfAnExceptionDoesNotHideIt) {
  const auto fails = [&](const auto& run) {
    try {
      run([&] {
        gpu->fails_at = "event of 7, 0 waits";
        throw std::runtime_error("the first one");
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) { EXPECT_STREQ(error.what(), "the first one"); }
    EXPECT_EQ(gpu->fails_at, "");
    EXPECT_EQ(gpu->current(), 0);
  };
  fails([&](const auto& work) { capture(*graph, work); });
  fails([&](const auto& work) { device->run_on_capture_stream(work); });
}

TEST(CudaGraphCalls, WhatCudaRefusesNamesTheReasonAndLeavesNothingBehind) {
  for (const char* call : {"graph 1", "event of 0, 7 waits", "current stream 7", "host waits for 7",
                           "begin capture of 7 into pool 1", "end capture", "instantiate", "event of 7, 0 waits"}) {
    SCOPED_TRACE(call);
    const auto its_gpu = std::make_shared<FakeCuda>();
    const auto its_device = make_cuda_graph_device(its_gpu);
    const auto its_graph = its_device->make_graph(its_device->make_pool());
    its_gpu->fails_at = call;
    try {
      capture(*its_graph, [] {});
      FAIL() << "nothing was thrown";
    } catch (const base::Error& error) {
      EXPECT_EQ(error.room(), "cuda graph");
      EXPECT_NE(std::string(error.what()).find(std::string("refused at ") + call), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("on the CPU"), std::string::npos) << error.what();
    }
    EXPECT_EQ(its_gpu->current(), 0);
    EXPECT_FALSE(its_graph->captured());
    const std::string log = its_gpu->take_log();
    EXPECT_EQ(log.find("discard capture") != std::string::npos, std::string(call) != "graph 1") << log;
    its_graph->abandon();  // as a caller does after the exception
    EXPECT_EQ(its_gpu->take_log(), "");
    capture(*its_graph, [] {});
    EXPECT_TRUE(its_graph->captured());
  }
}

TEST_F(CudaGraph, ACaptureThatDoesNotBeginForAnotherReasonLeavesNothingBehind) {
  gpu->without_memory = true;
  gpu->fails_at = "begin capture of 7 into pool 1";
  EXPECT_THROW(capture(*graph, [] {}), std::bad_alloc);
  EXPECT_EQ(gpu->take_log(), std::string(kBegun) + kGivenUp);
  capture(*graph, [] {});
  EXPECT_TRUE(graph->captured());
}

TEST_F(CudaGraph, ACallOutOfTurnIsOurMistake) {
  EXPECT_ANY_THROW(graph->replay());
  EXPECT_ANY_THROW(graph->end());
  graph->begin();
  EXPECT_ANY_THROW(graph->begin());
  EXPECT_ANY_THROW(graph->replay());
  EXPECT_ANY_THROW(device->make_graph(pool)->begin()) << "during a capture of the same thread";
  EXPECT_ANY_THROW(device->run_on_capture_stream([] {}));
  EXPECT_EQ(gpu->take_log(), kBegun) << "none of these has called CUDA";
  graph->end();
  EXPECT_ANY_THROW(graph->begin()) << "over a graph that is there";
  EXPECT_ANY_THROW(graph->end());
  struct OtherPool final : GraphPool {
    Bytes bytes() const override { return {}; }
  };
  EXPECT_ANY_THROW(device->make_graph(std::make_shared<OtherPool>()));
  gpu->take_log();
  graph->replay();
  graph->abandon();  // no capture is active
  graph->replay();
  EXPECT_EQ(gpu->take_log(), "launch graph 1 on 0\nlaunch graph 1 on 0\n");
  graph->reset();
  EXPECT_ANY_THROW(graph->replay());
}

TEST_F(CudaGraph, AResetInsideACaptureEndsIt) {
  graph->begin();
  graph->reset();
  EXPECT_EQ(gpu->take_log(), std::string(kBegun) + kGivenUp);
  graph->begin();
  graph.reset();
  EXPECT_EQ(gpu->current(), 0);
}

TEST_F(CudaGraph, NodesAndBytesAreCounted) {
  gpu->bytes[1] = {.live = 300, .peak = 0, .reserved = 4096};
  EXPECT_EQ(graph->size().nodes, 0);
  capture(*graph, [&] {
    for (int i = 0; i < 3; ++i) gpu->issue([] {});
    gpu->bytes[1].live = 200;
  });
  EXPECT_EQ(graph->size().nodes, 3);
  EXPECT_EQ(graph->size().bytes, 1000);
  EXPECT_EQ(pool->bytes().live, 200);
  EXPECT_EQ(pool->bytes().peak, 300) << "what was there before the capture";
  EXPECT_EQ(pool->bytes().reserved, 4096);
  graph->reset();
  EXPECT_EQ(graph->size().nodes, 0);
  EXPECT_EQ(graph->size().bytes, 0);
}

TEST_F(CudaGraph, WarmUpRunsAsideAndBothStreamsWait) {
  int runs = 0;
  device->run_on_capture_stream([&] {
    EXPECT_EQ(gpu->current(), 7);
    gpu->issue([&] { ++runs; });
  });
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(gpu->take_log(), std::string(kAside) + kBack);
}

TEST(CudaGraphWithoutGpu, SaysSo) {
  if (device::device_count() > 0) {
    EXPECT_NO_THROW(make_cuda_graph_device());
    return;
  }
  EXPECT_THROW(make_cuda_graph_device(), base::Error);
}

}  // namespace
}  // namespace metroplex::graph::cuda_graph_test

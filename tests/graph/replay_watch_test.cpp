// A replay that does not end is reported with its step and collective; other replays are not.
#include "graph/replay_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "graph/fake_cuda.h"

namespace metroplex::graph::replay_watch_test {
namespace {

using namespace std::chrono_literals;

struct ReplayWatchTest : testing::Test {
  std::shared_ptr<FakeCuda> gpu = std::make_shared<FakeCuda>();
  std::atomic<int64_t> progress{-1};
  std::promise<std::string> failure;
  std::future<std::string> reported = failure.get_future();
  std::unique_ptr<ReplayWatch> watch;
  std::unique_ptr<GraphDevice> device;

  // The limit only has to exceed the 20 ms in which a loaded machine may not run the watch's thread.
  void SetUp() override {
    ReplayWatch::Options options;
    options.timeout = 200ms;
    options.write = [this](int64_t number) { gpu->issue([this, number] { progress = number; }); };
    options.read = [this] { return progress.load(); };
    options.end_run = [this](const std::exception_ptr& error) {
      try {
        std::rethrow_exception(error);
      } catch (const base::Error& caught) { failure.set_value(caught.what()); }
    };
    watch = std::make_unique<ReplayWatch>(std::move(options));
    watch->joins("dp", "gradients", {0, 2});
    watch->joins("tp", "layers", {0, 1});
    device = make_cuda_graph_device(gpu, watch.get());
  }
  void TearDown() override { device.reset(); }

  void call(const std::string& name, const std::string& group, const void* work = nullptr) {
    watch->run({name, group, {}, {}, {}, [] {}, 0, work});
  }
  // Starts two collectives of dp around one of tp; the writes of their numbers are the only work.
  std::unique_ptr<Graph> capture_step() {
    std::unique_ptr<Graph> graph = device->make_graph(device->make_pool());
    watch->set_step("iteration 3");
    capture(*graph, [&] {
      call("reduce_scatter", "dp");
      call("all_gather", "dp");
      call("all_reduce", "tp");
      call("wait", "tp");
      call("wait", "dp");
      call("wait", "dp");
    });
    return graph;
  }
  std::string wait_for_report(size_t endless_node) {
    const auto graph = capture_step();
    gpu->endless_node = endless_node;
    watch->set_step("iteration 4");
    graph->replay();
    return reported.wait_for(20s) == std::future_status::ready ? reported.get() : "nothing";
  }
};

TEST_F(ReplayWatchTest, NamesTheCollectiveThatDoesNotEnd) {
  EXPECT_EQ(wait_for_report(3),
            "[comm] captured step of iteration 4: all_gather of group dp (ranks 0, 2) did not complete within 0.2 s "
            "(run.distributed_timeout_minutes)");
}

TEST_F(ReplayWatchTest, NamesCollectivesWaitedForInReverse) {
  const int first = 0, second = 0;
  std::unique_ptr<Graph> graph = device->make_graph(device->make_pool());
  watch->set_step("iteration 3");
  capture(*graph, [&] {
    call("reduce_scatter", "dp", &first);
    call("all_gather", "dp", &second);
    call("wait", "dp", &second);
    call("wait", "dp", &first);
  });
  gpu->endless_node = 1;
  graph->replay();
  ASSERT_EQ(reported.wait_for(20s), std::future_status::ready);
  EXPECT_NE(reported.get().find("iteration 3: all_gather of group dp"), std::string::npos);
}

TEST_F(ReplayWatchTest, NamesCollectivesOfAGroupInOrder) {
  EXPECT_NE(wait_for_report(2).find("iteration 4: reduce_scatter of group dp"), std::string::npos);
}

TEST_F(ReplayWatchTest, NamesTheFirstCollectiveOfAReplay) {
  EXPECT_NE(wait_for_report(1).find("iteration 4: all_reduce of group tp (ranks 0, 1)"), std::string::npos);
}

TEST_F(ReplayWatchTest, ReportsWorkAfterTheLastCollective) {
  EXPECT_NE(wait_for_report(4).find("work after the last collective did not complete"), std::string::npos);
}

TEST_F(ReplayWatchTest, IgnoresReplaysThatEnd) {
  const auto graph = capture_step();
  const auto other = capture_step();
  for (int i = 0; i < 3; ++i) {
    graph->replay();
    other->replay();
  }
  EXPECT_EQ(reported.wait_for(600ms), std::future_status::timeout);
}

// Each collective is fast enough, but all together exceed the limit.
TEST_F(ReplayWatchTest, CountsFromTheLastProgress) {
  const auto graph = capture_step();
  gpu->endless_node = 1;
  graph->replay();
  for (int64_t number = 1; number <= 3; ++number) {
    EXPECT_EQ(reported.wait_for(120ms), std::future_status::timeout) << number;
    progress = number;
  }
  gpu->endless_node = FakeCuda::kNoNode;
  EXPECT_EQ(reported.wait_for(400ms), std::future_status::timeout);
}

TEST_F(ReplayWatchTest, LeavesCudaErrorsToTheRank) {
  watch->add([]() -> bool { throw std::runtime_error("illegal address"); });
  EXPECT_EQ(reported.wait_for(400ms), std::future_status::timeout);
}

TEST_F(ReplayWatchTest, WritesNothingOutsideACapture) {
  call("all_reduce", "tp");
  call("wait", "tp");
  EXPECT_EQ(progress, -1);
  const auto graph = capture_step();
  EXPECT_EQ(graph->size().nodes, 4) << "one write at the start, and one for each wait";
}

}  // namespace
}  // namespace metroplex::graph::replay_watch_test

// Calls of one rank run in sequence, as NCCL's do on the stream of their communicator. A call starts when the
// previous one is complete, and a send is complete on receipt.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "pipeline/toy.h"
#include "support/forwarding_backend.h"
#include "support/run_ranks.h"

namespace metroplex::test::executor_streams_ranks_test {
namespace {

class StreamedCall final : public comm::Pending {
 public:
  explicit StreamedCall(std::vector<comm::P2pOp> ops) : ops_(std::move(ops)) {}
  void run(comm::GroupBackend& backend) {
    std::exception_ptr error;
    try {
      if (const comm::PendingPtr pending = backend.batch_p2p(std::move(ops_))) pending->wait();
    } catch (...) { error = std::current_exception(); }
    const std::lock_guard lock(mutex_);
    error_ = error;
    done_ = true;
    changed_.notify_all();
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::vector<comm::P2pOp> ops_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

class Stream final : public ForwardingBackend {
 public:
  explicit Stream(comm::GroupBackend& inner) : ForwardingBackend(inner), thread_([this] { work(); }) {}
  ~Stream() override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  comm::PendingPtr batch_p2p(std::vector<comm::P2pOp> ops) override {
    auto call = std::make_shared<StreamedCall>(std::move(ops));
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(call);
    }
    changed_.notify_all();
    return call;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return closed_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const auto call = queue_.front();
      queue_.pop_front();
      lock.unlock();
      call->run(inner_);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<StreamedCall>> queue_;
  bool closed_ = false;
  std::thread thread_;
};

// Every schedule with three or more stages, where a rank's two neighbors are different ranks, and with two.
std::vector<ScheduleCase> sizes() {
  std::vector<ScheduleCase> all;
  for (const int pp : {2, 3, 4}) {
    for (const int microbatches : {1, pp, 2 * pp + 1}) {
      all.push_back({"gpipe", pp, 1, microbatches, 0, false});
      all.push_back({"1f1b", pp, 1, microbatches, 0, false});
    }
    for (const int groups : {1, 2, 3}) {
      for (const bool overlap : {false, true}) {
        all.push_back({"interleaved", pp, 2, groups * pp, 0, overlap});
        all.push_back({"interleaved", pp, 2, groups * (pp + 1), pp + 1, overlap});
      }
    }
  }
  return all;
}

void run_on_streams(const ScheduleCase& size, bool forward_only, bool variable) {
  SCOPED_TRACE(base::concat(size.schedule, " pp ", size.pp, " chunks ", size.chunks, " microbatches ",
                            size.microbatches, " group ", size.group, size.overlap ? " overlapped" : ""));
  const plan::PipelineTable table = build_table(size, forward_only);
  const auto batches = toy_batches(size.microbatches, variable);
  const ToyResult expected = toy_by_formula(batches);
  run_ranks(size.pp, {.pp = size.pp},
            [&](const comm::World& world) {
              const comm::Group& pp = world.groups().pp;
              const auto stream = std::make_shared<Stream>(pp.backend());
              const comm::Group streamed({"pp", pp.purpose(), pp.ranks()}, pp.index(), stream);
              expect_same(run_toy(streamed, table, batches, variable), expected, !forward_only);
            },
            {.rendezvous = true, .timeout = std::chrono::seconds(5)});
}

TEST(ExecutorStreams, CallsOfOneShapeThatRunOneAfterTheOtherDoNotDeadlock) {
  for (const ScheduleCase& size : sizes()) {
    run_on_streams(size, false, false);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(ExecutorStreams, CallsOfDifferentShapesThatRunOneAfterTheOtherDoNotDeadlock) {
  for (const bool forward_only : {false, true}) {
    for (const ScheduleCase& size : sizes()) {
      run_on_streams(size, forward_only, true);
      ASSERT_FALSE(HasFailure());
    }
  }
}

}  // namespace
}  // namespace metroplex::test::executor_streams_ranks_test

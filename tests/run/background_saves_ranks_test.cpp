// Saves that are written while the run goes on: what they hold, how many there are at a time, what becomes of a slow
// and of a broken disk, and who writes how much.
#include <c10/core/CPUAllocator.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "base/log.h"
#include "files/fault_file_system.h"
#include "device/memory_meter.h"
#include "run/legs.h"
#include "forecast/memory_report.h"
#include "run/run_data.h"
#include "run/same_tensors.h"
#include "run/saving.h"
#include "step/state_tensors.h"
#include "run/trainer.h"
#include "checkpoint/directory.h"

namespace metroplex::test::background_saves_ranks_test {
namespace {

bool creates_tensors(const std::string& what, const std::string& path) {
  return what == "create" && path.ends_with(".safetensors");
}
bool removes_a_file(const std::string& what, const std::string&) { return what == "remove"; }

// A disk whose calls of one kind wait while it is held, and fail once it is broken.
class SlowDisk {
 public:
  explicit SlowDisk(bool (*affects)(const std::string&, const std::string&) = creates_tensors) : affects_(affects) {}
  files::FileSystem& disk() { return disk_; }
  void hold() { set(true, false); }
  void release() { set(false, false); }
  void break_down() { set(false, true); }

 private:
  void before(const std::string& what, const std::string& path) {
    if (!affects_(what, path)) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !held_; });
    if (broken_) throw base::Error("files", path + ": Input/output error");
  }
  void set(bool held, bool broken) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    broken_ = broken;
    changed_.notify_all();
  }

  bool (*affects_)(const std::string&, const std::string&);
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false, broken_ = false;
  files::PosixFileSystem posix_;
  files::FaultFileSystem disk_{
      posix_, {.before = [this](const std::string& what, const std::string& path) { before(what, path); }}};
};

std::shared_ptr<files::FileSystem> shared(const std::shared_ptr<SlowDisk>& slow) { return {slow, &slow->disk()}; }

config::Config make_config(const Folder& folder) {
  config::Config config = small_llama();
  config.checkpoint.save = folder.at("now");
  config.checkpoint.save_interval = 1;
  return config;
}

void expect_saves_of_their_moment(config::Config config, const TestLayout& layout) {
  const Folder folder;
  config.checkpoint.save = folder.at("later");
  config.checkpoint.save_interval = 1;
  config = cut(config, layout);
  SlowDisk disk;
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    run::BackgroundSaves saves(*assembly, disk.disk());
    for (int64_t step = 0; step < 2; ++step) {  // the second into the memory of the first
      step_at(*assembly, 2 * step);
      const run::Position position{step + 1, 8, 8};
      assembly->process.config.checkpoint.save = folder.at("now");
      ASSERT_TRUE(run::save_state(*assembly, position, disk.disk()).saved);
      assembly->process.config.checkpoint.save = folder.at("later");
      if (world.rank() == 0) disk.hold();
      comm::barrier(assembly->process.groups().world);
      saves.begin(position);
      EXPECT_FALSE(saves.take_finished());
      step_at(*assembly, 2 * step + 1);
      comm::barrier(assembly->process.groups().world);
      if (world.rank() == 0) disk.release();
      const auto outcome = saves.wait();
      ASSERT_TRUE(outcome);
      EXPECT_TRUE(outcome->saved) << outcome->problem;
      EXPECT_FALSE(saves.in_flight());
    }
  });
  for (const char* name : {"/iter_0000001", "/iter_0000002"})
    expect_same_tensors(folder.at("later") + name, folder.at("now") + name);
}

TEST(BackgroundSaves, HoldTheStateOfTheMomentTheyBeganAt) {
  for (const bool narrow : {false, true}) {
    config::Config config = small_llama();
    config.checkpoint.async_save = true;
    if (narrow) {
      config.precision.params_dtype = "bf16";
      config.optim.exp_avg_dtype = config.optim.exp_avg_sq_dtype = "8bit";
      config.model.hidden_size = 64;  // long enough for blocks of 8 bits
      config.model.ffn_hidden_size = 256;
    }
    expect_saves_of_their_moment(config, {});
    expect_saves_of_their_moment(config, {.dp = 2});
    expect_saves_of_their_moment(config, {.tp = 2, .pp = 2, .dp = 2, .sp = true});
    config.parallel.data_parallel_sharding_strategy = "optim_grads_params";
    expect_saves_of_their_moment(config, {.dp = 2});
  }
}

TEST(BackgroundSaves, HoldWhatIsPredictedForThem) {
  for (const TestLayout& layout : {TestLayout{}, TestLayout{.dp = 2}, TestLayout{.tp = 2, .pp = 2}}) {
    config::Config config = small_gpt();
    config.precision.params_dtype = "bf16";
    config.checkpoint.save = "nowhere";
    config.checkpoint.save_interval = 1;
    config.checkpoint.async_save = true;
    config = cut(config, layout);
    run_sharded(config, layout, [&](const comm::World& world) {
      const auto assembly = step::assemble(config, world, kVocab);
      files::PosixFileSystem disk;
      const device::MemoryMeter meter;
      const run::BackgroundSaves saves(*assembly, disk);
      const int64_t held = meter.bytes(), predicted = forecast::predicted_memory(assembly->process, 4).use.host;
      EXPECT_GT(held, 0);
      // One of several replicas (tp or pp) writes their common state; a prediction counts it for each.
      if (layout.tp * layout.pp == 1) {
        EXPECT_EQ(held, predicted);
      } else {
        EXPECT_LE(held, predicted);
      }
    });
  }
}

struct RunReport {
  std::vector<std::string> lines;
  run::RunSummary summary;
};

class Lines final : public base::Log {
 public:
  explicit Lines(std::vector<std::string>& lines) : lines_(lines) {}
  void info(const std::string& line) override { lines_.push_back(line); }
  void warn(const std::string& line) override { lines_.push_back("WARNING " + line); }

 private:
  std::vector<std::string>& lines_;
};

// The messages and the exit of rank 0; `after` is called on rank 0 when a step has ended.
RunReport run(config::Config config, const std::shared_ptr<files::FileSystem>& disk,
              const std::function<void(int64_t)>& after = {}) {
  const TestLayout layout{.dp = 2};
  config = cut(config, layout);
  RunReport told;
  run_sharded(config, layout, [&](const comm::World& world) {
    std::vector<std::string> lines;
    Lines log(lines);
    const auto summary =
        run::run_training(config, world, {kVocab, kVocab - 1, nullptr}, {&log, disk, {}, [&](int64_t step, int64_t) {
                                                                           if (after) after(step);
                                                                         }});
    if (world.rank() == 0) told = {lines, summary};
  });
  return told;
}

size_t count(const RunReport& told, const std::string& words) {
  return static_cast<size_t>(std::count_if(told.lines.begin(), told.lines.end(), [&](const std::string& line) {
    return line.find(words) != std::string::npos;
  }));
}

TEST(BackgroundSaves, OfARunAreThoseOfOneThatWaits) {
  const Folder folder;
  config::Config config = make_config(folder);
  config.train.train_iters = 3;
  const RunReport waits = run(config, std::make_shared<files::PosixFileSystem>());
  config.checkpoint.save = folder.at("later");
  config.checkpoint.async_save = true;
  const RunReport goes_on = run(config, std::make_shared<files::PosixFileSystem>());
  EXPECT_EQ(goes_on.summary.last_loss, waits.summary.last_loss);
  EXPECT_EQ(goes_on.summary.last_checkpoint, folder.at("later") + "/iter_0000003");
  expect_same_tensors(folder.at("later") + "/iter_0000003", folder.at("now") + "/iter_0000003");
  EXPECT_EQ(count(goes_on, "saved checkpoint") + count(goes_on, "is not saved"), 3u);
}

TEST(BackgroundSaves, ADiskSlowerThanTheIntervalHoldsNoStepUpAndTheLastOneIsWritten) {
  const Folder folder;
  config::Config config = make_config(folder);
  config.checkpoint.async_save = true;
  config.train.train_iters = 6;
  const auto disk = std::make_shared<SlowDisk>();
  disk->hold();
  const RunReport told = run(config, shared(disk), [&](int64_t step) {
    if (step == 5) disk->release();
  });
  EXPECT_GE(count(told, "iteration 2 is not saved: iteration 1 is still being written"), 1u);
  EXPECT_GE(count(told, "is not saved"), 3u) << "of iterations 2 to 4";
  EXPECT_EQ(told.summary.last_checkpoint, folder.at("now") + "/iter_0000006");
  EXPECT_FALSE(told.summary.last_save_failed);
  EXPECT_TRUE(std::filesystem::exists(folder.at("now") + "/iter_0000001"));
  EXPECT_FALSE(std::filesystem::exists(folder.at("now") + "/iter_0000003"));
}

TEST(BackgroundSaves, ABrokenDiskIsToldAndTheOlderOnesStay) {
  const Folder folder;
  config::Config config = make_config(folder);
  config.checkpoint.async_save = true;
  config.train.train_iters = 4;
  const auto disk = std::make_shared<SlowDisk>();
  const RunReport told = run(config, shared(disk), [&](int64_t step) {
    if (step == 3) disk->break_down();
  });
  EXPECT_GE(count(told, "WARNING could not save iteration 4"), 1u);
  EXPECT_TRUE(told.summary.last_save_failed);
  EXPECT_NE(told.summary.on_disk.find("iter_000000"), std::string::npos) << told.summary.on_disk;
  files::PosixFileSystem posix;
  EXPECT_TRUE(checkpoint::read_latest(posix, folder.at("now")).name);
}

// Only rank 0 removes old checkpoints, so rank 1 has finished the save while rank 0 has not.
TEST(BackgroundSaves, NoRankSavesBeforeAllRanksCan) {
  const Folder folder;
  config::Config config = make_config(folder);
  config.train.train_iters = 6;
  const RunReport waits = run(config, std::make_shared<files::PosixFileSystem>());
  config.checkpoint.save = folder.at("later");
  config.checkpoint.async_save = true;
  config.checkpoint.keep_last = 1;
  const auto disk = std::make_shared<SlowDisk>(removes_a_file);
  disk->hold();
  const RunReport goes_on = run(config, shared(disk), [&](int64_t step) {
    if (step == 5) disk->release();
  });
  EXPECT_GE(count(goes_on, "is still being written"), 1u);
  EXPECT_EQ(goes_on.summary.last_checkpoint, folder.at("later") + "/iter_0000006");
  expect_same_tensors(folder.at("later") + "/iter_0000006", folder.at("now") + "/iter_0000006");
}

TEST(BackgroundSaves, EveryFailedRemovalIsReported) {
  const Folder folder;
  config::Config config = make_config(folder);
  config.train.train_iters = 3;
  run(config, std::make_shared<files::PosixFileSystem>());
  config.checkpoint.load = config.checkpoint.save;
  config.checkpoint.keep_last = 1;
  config.train.train_iters = 4;
  config.optim.override_opt_param_scheduler = true;
  const auto disk = std::make_shared<SlowDisk>(removes_a_file);
  disk->break_down();
  const RunReport told = run(config, shared(disk));
  EXPECT_EQ(told.summary.last_checkpoint, folder.at("now") + "/iter_0000004");
  for (const char* name : {"iter_0000001", "iter_0000002", "iter_0000003"})
    EXPECT_EQ(count(told, std::string(".delete-") + name), 1u) << name;
}

// Bytes of the file of every rank, without its header.
std::vector<int64_t> written(const config::Config& base, const TestLayout& layout) {
  const config::Config config = cut(base, layout);
  std::vector<int64_t> bytes(static_cast<size_t>(layout.ranks()));
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    for (const checkpoint::LocalPiece& piece :
         step::regions_to_write(assembly->process, assembly->model, assembly->optimization))
      piece.produce(
          [&](const void*, size_t size) { bytes[static_cast<size_t>(world.rank())] += static_cast<int64_t>(size); });
  });
  return bytes;
}

TEST(Writing, ReplicasWriteEquallyMuch) {
  config::Config config = small_gpt();
  config.model.make_vocab_size_divisible_by = 1;  // padding is not written
  for (const TestLayout& layout :
       {TestLayout{.dp = 2}, TestLayout{.dp = 4}, TestLayout{.dp = 8}, TestLayout{.tp = 2, .dp = 2}}) {
    const std::vector<int64_t> bytes = written(config, layout);
    const int64_t stride = layout.tp;
    for (int64_t shard = 0; shard < stride; ++shard) {
      int64_t least = bytes[static_cast<size_t>(shard)], most = least;
      for (size_t rank = static_cast<size_t>(shard); rank < bytes.size(); rank += static_cast<size_t>(stride)) {
        least = std::min(least, bytes[rank]);
        most = std::max(most, bytes[rank]);
      }
      EXPECT_GT(least, 0);
      EXPECT_LE(most - least, 8) << "one element of fp64";
    }
  }
}

}  // namespace
}  // namespace metroplex::test::background_saves_ranks_test

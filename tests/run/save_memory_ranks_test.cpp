// Memory that a save needs in addition to the saved state, against the meter; a save without memory fails.
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>

#include "device/memory_meter.h"
#include "run/legs.h"
#include "run/posix_disk.h"

namespace metroplex::test::save_memory_ranks_test {
namespace {

config::Config enlarge(config::Config config) {
  config.model.hidden_size = 64;
  config.model.ffn_hidden_size = 256;
  config.precision.params_dtype = "bf16";
  config.model.attention_dropout = config.model.hidden_dropout = 0;
  return config;
}

// Bytes of the widest tensor in the checkpoint's format, and of all tensors.
struct Sizes {
  int64_t largest = 0, all = 0;
};

Sizes decoded_sizes(step::Assembly& assembly) {
  Sizes sizes;
  for (const optim::State& state : assembly.optimization.optimizer->state()) {
    const auto bytes = static_cast<int64_t>((state.end - state.begin) * c10::elementSize(state.dtype));
    sizes.largest = std::max(sizes.largest, bytes);
    sizes.all += bytes;
  }
  return sizes;
}

// Lists of shards are sent as text.
constexpr int64_t kTexts = 256 << 10;

TEST(SaveMemory, OfASaveIsOneTensorBesideTheState) {
  for (const bool narrow : {true, false}) {
    for (const TestLayout& layout : {TestLayout{}, TestLayout{1, 1, 1, 2, false}, TestLayout{2, 1, 1, 1, true}}) {
      SCOPED_TRACE(base::concat("narrow ", narrow, " dp ", layout.dp, " tp ", layout.tp));
      const Folder folder;
      config::Config config = enlarge(small_llama());
      if (narrow) config.optim.exp_avg_dtype = config.optim.exp_avg_sq_dtype = "8bit";
      config.optim.store_param_remainders = narrow;
      config.checkpoint.save = folder.at("ckpt");
      config.checkpoint.save_interval = 1;
      config = cut(config, layout);
      run_sharded(config, layout, [&](const comm::World& world) {
        const auto assembly = step::assemble(config, world, kVocab);
        step_at(*assembly, 0);
        const Sizes sizes = decoded_sizes(*assembly);
        ASSERT_GT(sizes.all, 4 * (sizes.largest + kTexts)) << "too small to be conclusive";
        const device::MemoryMeter meter;
        EXPECT_TRUE(run::save_state(*assembly, {1, 8, 8}).saved);
        EXPECT_LE(meter.peak_bytes(), (narrow ? sizes.largest : 0) + kTexts);
        if (narrow) { EXPECT_GE(meter.peak_bytes(), sizes.largest) << "the meter sees nothing"; }
      });
    }
  }
}

class LimitedAllocator final : public c10::Allocator {
 public:
  explicit LimitedAllocator(c10::Allocator* wide) : wide_(wide) {}
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(static_cast<int64_t>(bytes) < limit.load(), "out of memory: ", bytes, " bytes are too many");
    return wide_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return wide_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t count) const override { wide_->copy_data(to, from, count); }
  std::atomic<int64_t> limit{std::numeric_limits<int64_t>::max()};

 private:
  c10::Allocator* wide_;
};

TEST(SaveMemory, ASaveWithoutMemoryIsAFailedSaveAndTheRunGoesOn) {
  c10::Allocator* before = c10::GetCPUAllocator();
  LimitedAllocator scarce(before);
  c10::SetCPUAllocator(&scarce, 1);
  const Folder folder;
  const TestLayout layout{1, 1, 1, 2, false};
  config::Config config = enlarge(small_llama());
  config.optim.exp_avg_dtype = "bf16";
  config.checkpoint.save = folder.at("ckpt");
  config.checkpoint.save_interval = 1;
  config = cut(config, layout);
  run_sharded(config, layout, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    step_at(*assembly, 0);
    EXPECT_TRUE(run::save_state(*assembly, {1, 8, 8}).saved);
    comm::barrier(assembly->process.groups().world);
    if (world.rank() == 0) scarce.limit = decoded_sizes(*assembly).largest;
    comm::barrier(assembly->process.groups().world);
    const run::SaveOutcome failed = run::save_state(*assembly, {2, 16, 16});
    EXPECT_FALSE(failed.saved);
    EXPECT_NE(failed.problem.find("out of memory"), std::string::npos) << failed.problem;
    EXPECT_EQ(failed.problem.find('\n'), std::string::npos) << "a stack trace: " << failed.problem;
    comm::barrier(assembly->process.groups().world);
    scarce.limit = std::numeric_limits<int64_t>::max();
    comm::barrier(assembly->process.groups().world);
    EXPECT_GT(step_at(*assembly, 1).loss, 0.0);
    EXPECT_TRUE(run::save_state(*assembly, {2, 16, 16}).saved);
  });
  c10::SetCPUAllocator(before, 1);
}

}  // namespace
}  // namespace metroplex::test::save_memory_ranks_test

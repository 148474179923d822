// Changes that a trace follows automatically, and differences that the meter detects.
#include <ATen/core/grad_mode.h>

#include <map>

#include "comm/launch.h"
#include "device/cublas_workspace.h"
#include "device/device.h"
#include "nn/autograd_node.h"
#include "models/registry.h"
#include "run/memory_cases.h"
#include "run/memory_watch.h"
#include "forecast/predict.h"
#include "support/without_onednn.h"

namespace metroplex::test::trace_test {
namespace {

// A modified layer that saves a second copy of its output for backward.
class KeepsMore final : public nn::Segment {
 public:
  const std::string& name() const override { return name_; }
  nn::Values forward(const nn::Values& in, nn::SegmentContext& context) override {
    nn::Value value = in.at(nn::kHiddenStates);
    value.compute(context.batch);
    const at::Tensor x = value.tensor();
    at::Tensor out, kept;
    {
      const at::NoGradGuard no_grad;
      out = x.detach().clone();
      kept = x.detach().clone();
    }
    return {nn::kHiddenStates, nn::attach(out, {x}, [kept](const at::Tensor& dy) -> nn::Gradients { return {dy}; })};
  }
  void collect_params(std::vector<nn::Param*>& /*params*/) override {}

 private:
  std::string name_ = "keeps_more";
};

nn::Blocks build_changed(const models::ModelContext& context, const models::StageSpec& slice) {
  nn::Blocks blocks = models::build_stage(context, slice);
  for (nn::Block& block : blocks) {
    if (block.is_layer) block.segments.push_back(std::make_unique<KeepsMore>());
  }
  return blocks;
}

config::Config small_config() { return peak_config({"gpt", false, {}}); }
int64_t hidden_bytes(const config::Config& config) {
  return config.train.seq_length * config.train.micro_batch_size * config.model.hidden_size * 4;
}

TEST(Trace, AChangeOfWhatALayerKeepsIsFollowed) {
  const WithoutOneDnn without;
  const config::Config config = small_config();
  const replay::MemoryPrediction plain = forecast::predict_memory({config, 1, 0, 50});
  const replay::MemoryPrediction changed = forecast::predict_memory({config, 1, 0, 50, 0, at::kCPU, build_changed});
  // Each of four layers holds one tensor more.
  EXPECT_EQ(changed.use.activations - plain.use.activations, 4 * hidden_bytes(config));
  run_sharded(config, {}, [&](const comm::World& world) {
    device::MemoryMeter meter;
    const auto assembly = step::assemble(config, world, 50, false, build_changed);
    MemoryWatch watch(*assembly, meter);
    train_watched(*assembly, watch);
    EXPECT_NEAR(watch.most(), forecast::step_bytes(changed), kScalars);
  });
}

// A copy unknown to the layers, allocated during a block and freed after it.
struct StrayCopy final : nn::StageObserver {
  void before(const nn::RegionEvent& event) override {
    if (event.block == 2) copy = at::empty({bytes}, at::kByte);
  }
  void after(const nn::RegionEvent& /*event*/) override { copy.reset(); }
  int64_t bytes = 0;
  at::Tensor copy;
};

TEST(Trace, AStrayCopyIsFoundByTheMeter) {
  const WithoutOneDnn without;
  const config::Config config = small_config();
  const replay::MemoryPrediction want = forecast::predict_memory({config, 1, 0, 50});
  run_sharded(config, {}, [&](const comm::World& world) {
    device::MemoryMeter meter;
    const auto assembly = step::assemble(config, world, 50);
    StrayCopy stray;
    stray.bytes = hidden_bytes(config);
    MemoryWatch watch(*assembly, meter);
    assembly->model.stages[0]->add_observer("stray", stray);
    train_watched(*assembly, watch);
    assembly->model.stages[0]->remove_observer("stray");
    ASSERT_EQ(watch.moments.size(), want.moments.size());
    int found = 0;
    for (size_t i = 0; i < want.moments.size(); ++i) {
      const int64_t more = watch.moments[i].most - want.moments[i].most;
      if (std::abs(more) <= kScalars) continue;
      EXPECT_EQ(watch.moments[i].block, 2u);
      EXPECT_NEAR(more, stray.bytes, kScalars);
      ++found;
    }
    EXPECT_EQ(found, 2 * 4) << "forward and backward of four microbatches";
  });
}

// With tensor parallelism a layer's forward makes two all-reduces of T h numbers, its backward two.
TEST(Trace, OperatorsAndCollectivesAreNamedInOrder) {
  const config::Config config = peak_config({"gpt", false, {2, 1, 1, 1, false}});
  const replay::RankTrace trace = forecast::trace_rank({config, 2, 0, 50});
  for (const replay::ActionTrace* action : {&trace.chunks.at(0).forward, &trace.chunks.at(0).backward}) {
    for (const replay::IslandTrace& region : action->regions) {
      if (region.block < 1 || region.block > 4) continue;
      int reduced = 0, waits = 0, operators = 0;
      for (const replay::TraceOperation& operation : region.operations) {
        operators += operation.group.empty() ? 1 : 0;
        if (operation.group.empty()) continue;
        EXPECT_EQ(operation.group, "tp");
        if (operation.name == "wait") {
          ++waits;
          continue;
        }
        EXPECT_EQ(operation.name, "all_reduce");
        EXPECT_EQ(operation.bytes, hidden_bytes(config));
        ++reduced;
      }
      EXPECT_EQ(reduced, 2) << "block " << region.block;
      EXPECT_EQ(waits, reduced) << "block " << region.block;
      EXPECT_GE(operators, 3);
    }
  }
}

// GPU allocations are multiples of 512 bytes; nothing else depends on the device.
TEST(Trace, AGpusBytesAreInBlocksOfItsAllocator) {
  const config::Config config = small_config();
  const replay::MemoryPrediction cpu = forecast::predict_memory({config, 1, 0, 50}),
                                 gpu = forecast::predict_memory({config, 1, 0, 50, 0, at::Device(at::kCUDA, 0)});
  EXPECT_EQ(gpu.use.parameters, cpu.use.parameters);
  EXPECT_EQ(gpu.use.moments, cpu.use.moments);
  EXPECT_NE(gpu.use.activations, cpu.use.activations);
  EXPECT_EQ((gpu.use.activations - gpu.borders) % 512, 0);
}

// cuBLAS workspaces are held for the whole run and have no column: one for the steps, one for the capture stream.
TEST(Trace, AGpuHoldsWhatCublasWorksIn) {
  config::Config config = small_config();
  const auto predict = [&](at::Device device) { return forecast::predict_memory({config, 1, 0, 50, 0, device}); };
  const replay::MemoryPrediction cpu = predict(at::kCPU), gpu = predict(at::Device(at::kCUDA, 0));
  const std::optional<std::string> setting = comm::process_environment("CUBLAS_WORKSPACE_CONFIG");
  const int64_t one = device::cublas_workspace_bytes(device::compute_capability(), setting);
  EXPECT_EQ(cpu.libraries, 0);
  EXPECT_EQ(gpu.libraries, one);
  EXPECT_GE(gpu.use.workspace, one);
  EXPECT_LT(forecast::step_bytes(gpu), one) << "no part of a graph's pool";
  EXPECT_EQ(gpu.peak, gpu.use.total());
  for (const config::CudaGraphImpl impl : {config::CudaGraphImpl::full_iteration, config::CudaGraphImpl::local}) {
    config.train.cuda_graph_impl = impl;
    EXPECT_EQ(predict(at::Device(at::kCUDA, 0)).libraries, 2 * one);
  }
  config.run.deterministic_mode = true;
  if (setting) return;
  EXPECT_EQ(predict(at::Device(at::kCUDA, 0)).libraries, 2 * (int64_t{32} << 20)) << ":4096:8";
}

// Documents and windows on a GPU use flash attention, whose workspace grows with the number of documents.
TEST(Trace, AGpusAttentionOfDocumentsIsTheLibrarysWithRoomForThem) {
  config::Config config = small_config();
  config.precision.params_dtype = "bf16";
  config.model.kv_channels = 8;
  config.data.reset_attention_mask = true;
  int ranks = 1;
  const auto traced = [&] { return forecast::trace_rank({config, ranks, 0, 50, 0, at::Device(at::kCUDA, 0)}); };
  const auto calls = [&] {
    std::map<std::string, int> count;
    const replay::RankTrace trace = traced();
    for (const replay::ActionTrace* action : {&trace.chunks.at(0).forward, &trace.chunks.at(0).backward}) {
      for (const replay::IslandTrace& region : action->regions) {
        for (const replay::TraceOperation& operation : region.operations) ++count[operation.name];
      }
    }
    return count;
  };
  const auto layers = static_cast<int>(config.model.num_layers);
  EXPECT_EQ(calls()["attention_flash"], layers);
  EXPECT_EQ(calls()["attention_flash_backward"], layers);
  EXPECT_EQ(calls()["attention_softmax"], 0);
  const auto peak = [&] { return forecast::predict_memory({config, 1, 0, 50, 0, at::Device(at::kCUDA, 0)}).peak; };
  config.data.max_documents_per_sample = 1000;
  const int64_t thousand = peak();
  config.data.max_documents_per_sample = 11000;
  // Each additional document takes 128 queries of 8 numbers in rows of 32, and a sum for each, in fp32 for every
  // head. Its offset takes 8 bytes in every microbatch, and 4: 160,000 bytes, ten times the bound. Fewer than 32
  // tensors grow, each in blocks of 512 bytes.
  const config::Train& train = config.train;
  const int64_t each =
      128 * config.model.num_attention_heads * 33 * 4 + train.global_batch_size / train.micro_batch_size * 8 + 4;
  EXPECT_NEAR(static_cast<double>(peak() - thousand), static_cast<double>(train.micro_batch_size * 10000 * each),
              32 * 512.0);
  const config::Config alone = config;
  config.parallel.context_parallel_size = 2;
  ranks = 2;
  for (const int64_t window : {-1, 5}) {
    config.model.window_size = window;
    EXPECT_GE(calls()["attention_flash"], 2 * layers) << "keys of either rank";
    EXPECT_EQ(calls()["attention_flash"], calls()["attention_flash_backward"]);
    EXPECT_EQ(calls()["attention_softmax"], 0);
  }
  config = alone;
  ranks = 1;
  config.model.attention_dropout = 0.1;
  EXPECT_EQ(calls()["attention_flash"], 0);
  EXPECT_EQ(calls()["attention_softmax"], layers);
}

}  // namespace
}  // namespace metroplex::test::trace_test

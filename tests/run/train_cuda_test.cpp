// Training on a GPU against the CPU: one rank, thread ranks that share the GPU, ZeRO, offload and checkpoints.
// float64 shows that the computation is the same; fp32 and bf16 show that it is as exact as they allow. The latter
// use SGD: Adam divides small gradients by their size, which amplifies their rounding.
#include "device/memory_meter.h"
#include "support/gpu.h"
#include "step/state_tensors.h"
#include "run/posix_disk.h"
#include "run/support.h"
#include "verify/verify.h"

namespace metroplex::test::train_cuda_test {
namespace {

using verify::LayoutRun;

void run_on(int gpu, const config::Config& config, const TestLayout& layout, const comm::RankBody& body) {
  const auto ranks = static_cast<int>(layout.ranks());
  comm::ThreadsOptions options;
  options.timeout = std::chrono::seconds(60);
  options.gpu = gpu;
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), options, body);
}

LayoutRun trained(int gpu, const config::Config& base, const TestLayout& layout = {}, int steps = 3) {
  const config::Config config = cut(base, layout);
  LayoutRun result;
  run_on(gpu, config, layout, [&](const comm::World& world) {
    EXPECT_EQ(world.device().is_cuda(), gpu >= 0);
    LayoutRun mine = verify::run_layout(config, world, kVocab, steps);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

struct Allowed {
  double loss, parameter;  // relative; absolute
};

void expect_close(const LayoutRun& got, const LayoutRun& wanted, const Allowed& allowed) {
  const auto difference = verify::compare_runs(got, wanted);
  EXPECT_LE(difference.loss, allowed.loss);
  EXPECT_LE(difference.parameter, allowed.parameter) << difference.parameter_name;
}

config::Config plain(config::Config config, const std::string& dtype) {
  config.precision.params_dtype = dtype;
  config.optim.optimizer = "sgd";
  return config;
}

constexpr Allowed kFloat64{1e-10, 1e-10};
// A gradient is a sum of some hundred products through four layers: off by about 1e-5 of the whole gradient's norm,
// which clipping limits to 0.5. Three steps of lr 1e-2 with momentum differ by at most 3 * 1e-2 * 2 * 0.5 * 1e-5 =
// 3e-7. Each time parameters are rounded to 6e-8 relative.
constexpr Allowed kFloat32{1e-5, 2e-6};
// Activations and gradients are rounded to 2^-8 some four times a layer: off by up to 6 %. The same steps differ by
// at most 3 * 1e-2 * 2 * 0.5 * 0.06 = 1.8e-3; a loss near 4 by a few thousandths.
constexpr Allowed kBf16{5e-3, 2e-3};

TEST(TrainOnGpu, AStepOfEveryFamilyIsTheStepOfTheCpuInFloat64) {
  MPX_NEED_GPU_KERNELS();
  config::Config codegeex = small_gpt();
  codegeex.model.family = "codegeex";
  for (const config::Config& config : {small_gpt(), small_llama(), codegeex}) {
    SCOPED_TRACE(config.model.family);
    expect_close(trained(0, config), trained(-1, config), kFloat64);
  }
}

TEST(TrainOnGpu, Fp32AndBf16AreAsExactAsTheyAllow) {
  MPX_NEED_GPU_KERNELS();
  for (const config::Config& config : {small_gpt(), small_llama()}) {
    SCOPED_TRACE(config.model.family);
    expect_close(trained(0, plain(config, "fp32")), trained(-1, plain(config, "fp32")), kFloat32);
    expect_close(trained(0, plain(config, "bf16")), trained(-1, plain(config, "bf16")), kBf16);
  }
}

TEST(TrainOnGpu, EveryOptimizerAndStorageTakesItsStepThere) {
  MPX_NEED_GPU_KERNELS();
  for (const char* optimizer : {"adam", "sgd", "lion", "muon"}) {
    config::Config config = small_gpt();
    config.optim.optimizer = optimizer;
    // A key bias shifts all scores of a query equally: its gradient is 0 except for rounding, and lion would take the
    // sign of it.
    config.model.add_bias_linear = config.optim.optimizer != "lion";
    SCOPED_TRACE(optimizer);
    expect_close(trained(0, config), trained(-1, config), kFloat64);
  }
  // Both round the state alike; the difference is bf16's forward and backward, and lr bounds Adam's step.
  for (const bool remainders : {false, true}) {
    config::Config config = small_gpt();
    config.precision.params_dtype = "bf16";
    config.optim.exp_avg_dtype = config.optim.exp_avg_sq_dtype = "8bit";
    config.optim.store_param_remainders = remainders;
    expect_close(trained(0, config), trained(-1, config), {2e-2, 3 * 2 * config.optim.lr});
  }
}

TEST(TrainOnGpu, RanksThatShareAGpuAreOneRank) {
  MPX_NEED_GPU_KERNELS();
  const LayoutRun reference = trained(-1, small_gpt());
  for (const TestLayout& layout :
       {TestLayout{.tp = 2}, TestLayout{.tp = 2, .pp = 2},
        TestLayout{.tp = 2, .pp = 2, .vpp = 2, .dp = 2, .sp = true}, TestLayout{.dp = 4}}) {
    SCOPED_TRACE(base::concat("tp ", layout.tp, " pp ", layout.pp, " vpp ", layout.vpp, " dp ", layout.dp));
    expect_close(trained(0, small_gpt(), layout), reference, kFloat64);
  }
}

TEST(TrainOnGpu, ZeroStagesRecomputeAndOffloadChangeNothing) {
  MPX_NEED_GPU_KERNELS();
  const LayoutRun reference = trained(-1, small_gpt());
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    for (const bool offload : {false, true}) {
      config::Config config = small_gpt();
      config.parallel.data_parallel_sharding_strategy = strategy;
      config.optim.optimizer_cpu_offload = offload;
      config.run.device = "cuda";
      config.memory.offload_activations = offload ? "host" : "none";
      config.memory.recompute_granularity = offload ? "none" : "selective";
      SCOPED_TRACE(base::concat(strategy, offload ? " offload" : " recompute"));
      expect_close(trained(0, config, {.dp = 2}), reference, kFloat64);
    }
  }
}

// Losses of eight steps on the GPU, each with an evaluation after it; two steps have half of the microbatches.
std::vector<double> losses_with(const char* impl, const std::string& modules) {
  config::Config config = small_gpt();
  config.train.cuda_graph_impl = impl;
  if (!modules.empty()) config.train.cuda_graph_modules = {modules};
  config.train.cuda_graph_warmup_steps = 1;
  config = cut(config, {});
  std::vector<double> losses;
  run_on(0, config, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    for (int64_t step = 0; step < 8; ++step) {
      std::vector<nn::Microbatch> batches = make_batches(*assembly, step);
      for (nn::Microbatch& batch : batches) batch = step::on_device(batch, world.device());
      if (step == 4 || step == 5) batches.resize(batches.size() / 2);
      losses.push_back(step::train_step(*assembly, {batches, step + 1, 8 * step, false, {}}).loss);
      losses.push_back(step::evaluate_step(*assembly, {batches.front()}).mean());
    }
  });
  return losses;
}

TEST(TrainOnGpu, StepsFromGraphsAreTheStepsWithoutThemBetweenEvaluationsAndOtherBatchSizes) {
  MPX_NEED_GPU_KERNELS();
  const std::vector<double> eager = losses_with("none", "");
  for (const auto& [impl, modules] : std::vector<std::pair<const char*, std::string>>{
           {"local", ""}, {"transformer_engine", "attn"}, {"transformer_engine", "mlp"}, {"full_iteration", ""}}) {
    const std::vector<double> got = losses_with(impl, modules);
    ASSERT_EQ(got.size(), eager.size());
    for (size_t i = 0; i < eager.size(); ++i)
      EXPECT_NEAR(got[i], eager[i], kFloat64.loss * eager[i]) << impl << " " << modules << ", number " << i;
  }
}

TEST(TrainOnGpu, TwentyStepsHaveTheLossesOfTheCpu) {
  MPX_NEED_GPU_KERNELS();
  config::Config config = plain(small_llama(), "fp32");
  config.optim.lr = 0.1;
  config.optim.clip_grad = 1.0;
  const LayoutRun gpu = trained(0, config, {}, 20), cpu = trained(-1, config, {}, 20);
  // Differences of 1e-6 grow with every step, here by a factor below two.
  for (size_t i = 0; i < cpu.losses.size(); ++i) EXPECT_NEAR(gpu.losses[i], cpu.losses[i], 1e-3) << "step " << i;
}

TEST(TrainOnGpu, TheSameRunHasTheSameBits) {
  MPX_NEED_GPU_KERNELS();
  const config::Config config = plain(small_gpt(), "fp32");
  const LayoutRun once = trained(0, config, {.tp = 2, .dp = 2}), again = trained(0, config, {.tp = 2, .dp = 2});
  EXPECT_EQ(once.losses, again.losses);
  for (const auto& [name, tensor] : once.params) EXPECT_TRUE(at::equal(tensor, again.params.at(name))) << name;
}

TEST(TrainOnGpu, FirstWeightsAreThoseOfTheCpu) {
  MPX_NEED_GPU_KERNELS();
  for (const char* dtype : {"fp64", "fp32", "bf16", "fp16"}) {
    config::Config config = small_gpt();
    config.precision.params_dtype = dtype;
    const LayoutRun gpu = trained(0, config, {.tp = 2}, 0), cpu = trained(-1, config, {.tp = 2}, 0);
    for (const auto& [name, tensor] : cpu.params) EXPECT_TRUE(at::equal(gpu.params.at(name), tensor)) << name;
  }
}

TEST(TrainOnGpu, ACheckpointOfTheGpuGoesOnOnTheCpu) {
  MPX_NEED_GPU_KERNELS();
  const Folder folder;
  config::Config config = small_gpt();
  config.precision.params_dtype = "bf16";
  config.optim.exp_avg_dtype = "8bit";
  config.optim.store_param_remainders = true;
  config.checkpoint.save = config.checkpoint.load = folder.path();
  config = cut(config, {});
  std::map<std::string, at::Tensor> saved, loaded;
  run_on(0, config, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    std::vector<nn::Microbatch> batches = make_batches(*assembly, 0);
    for (nn::Microbatch& batch : batches) batch = step::on_device(batch, world.device());
    step::train_step(*assembly, {batches, 1, 0, false, {}});
    EXPECT_TRUE(run::save_state(*assembly, {1, config.train.global_batch_size, 0}).saved);
    saved = whole_state(*assembly);
  });
  run_on(-1, config, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    EXPECT_TRUE(run::load_state(*assembly, folder.path()).loaded);
    loaded = whole_state(*assembly);
  });
  ASSERT_EQ(saved.size(), loaded.size());
  for (const auto& [name, tensor] : saved) EXPECT_TRUE(at::equal(loaded.at(name), tensor)) << name;
}

// One decoded tensor on the device; a buffer and the lists of shards, which are sent as text, on the host.
TEST(TrainOnGpu, ASaveTakesOneTensorOnTheDeviceAndABufferOnTheHost) {
  MPX_NEED_GPU_KERNELS();
  const Folder folder;
  config::Config config = small_llama();
  config.model.hidden_size = 512;
  config.model.ffn_hidden_size = 8192;
  config.precision.params_dtype = "bf16";
  config.optim.exp_avg_dtype = config.optim.exp_avg_sq_dtype = "8bit";
  config.optim.store_param_remainders = true;
  config.checkpoint.save = folder.path();
  config = cut(config, {});
  run_on(0, config, {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    int64_t largest = 0, all = 0;
    for (const optim::State& state : assembly->optimization.optimizer->state()) {
      const auto bytes = static_cast<int64_t>((state.end - state.begin) * c10::elementSize(state.dtype));
      largest = std::max(largest, bytes);
      all += bytes;
    }
    ASSERT_GT(largest, step::kHostBufferBytes) << "one buffer would hold a whole tensor";
    const device::MemoryMeter device(device::MemoryMeter::Of::gpu), host(device::MemoryMeter::Of::host);
    EXPECT_TRUE(run::save_state(*assembly, {1, 8, 8}).saved);
    EXPECT_LE(device.peak_bytes(), largest + 512);
    EXPECT_LE(host.peak_bytes(), step::kHostBufferBytes + (1 << 20));
    EXPECT_LT(4 * largest, all) << "too small to be conclusive";
  });
}

}  // namespace
}  // namespace metroplex::test::train_cuda_test

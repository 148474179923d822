// LoRA over a base that is stored as codes (peft.base_format), in float64: against LoRA over the decoded values, on
// every kind of layout, and through checkpoints. Tolerances are those of verify/verify.h.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "config/load.h"
#include "device/memory_meter.h"
#include "files/small_float.h"
#include "nn/param_init.h"
#include "nn/stored_weight.h"
#include "run/legs.h"
#include "run/run_layouts.h"
#include "run/same_tensors.h"
#include "run/support.h"
#include "support/error_of.h"

namespace metroplex::run::stored_weights_ranks_test {
namespace {

using Settings = std::vector<std::string>;

const std::string kTrain =
    ", vocab_size: 50, make_vocab_size_divisible_by: 8}\n"
    "train: {seq_length: 8, micro_batch_size: 2, global_batch_size: 8}\n"
    "optim: {lr: 1.0e-2, weight_decay: 0.1, clip_grad: 0.5}\n";
// Half of each feature dimension is a multiple of 128, the block of fp8.
const std::string kLlama =
    "model: {family: llama, num_layers: 2, hidden_size: 256, num_attention_heads: 4, num_query_groups: 2,"
    " ffn_hidden_size: 256, hidden_dropout: 0.1" +
    kTrain;
const std::string kExperts =
    "model: {family: mixtral, num_layers: 2, hidden_size: 128, num_attention_heads: 4, num_query_groups: 2,"
    " kv_channels: 64, ffn_hidden_size: 256, moe_ffn_hidden_size: 256, num_moe_experts: 4, "
    "moe_shared_expert_intermediate_size: 256,"
    " init_method_std: 0.1" +
    kTrain;

const Settings kFp8{"peft.base_format=fp8"}, kNvfp4{"peft.base_format=nvfp4"}, kParams{};

config::Config with(const std::string& yaml, const Settings& first, const Settings& second = {}) {
  Settings all{"peft.lora_rank=3", "peft.lora_alpha=6"};
  all.insert(all.end(), first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  return config::parse(yaml, all);
}

Settings layout(int64_t tp, int64_t pp, const Settings& more = {}) {
  Settings all{"parallel.tensor_model_parallel_size=" + std::to_string(tp),
               "parallel.pipeline_model_parallel_size=" + std::to_string(pp), "parallel.ddp_bucket_size=500"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

const std::string kSequence = "parallel.sequence_parallel=true",
                  kZero1 = "parallel.data_parallel_sharding_strategy=optim",
                  kZero2 = "parallel.data_parallel_sharding_strategy=optim_grads";

struct Case {
  const char* name;
  int64_t ranks;
  Settings settings;
};

void expect_all_as_on_one_rank(const std::string& yaml, const Settings& format, const std::vector<Case>& cases) {
  std::map<int64_t, verify::LayoutRun> references;
  for (const Case& test_case : cases) {
    SCOPED_TRACE(test_case.name + (" " + format[0]));
    expect_equals_single_rank(for_ranks(with(yaml, format, test_case.settings), test_case.ranks), test_case.ranks,
                              references);
  }
  for (const auto& [batch, run] : references)
    EXPECT_TRUE(run.params.contains("decoder.layers.1.mlp.linear_fc1.weight") ||
                run.params.contains("decoder.layers.1.mlp.experts.linear_fc1.weight"));
}

// The result and the final parameters of three steps on one rank. `write` changes the initial parameters.
struct Steps {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> values, gradients;
};
Steps run_steps(const config::Config& config, const std::function<void(nn::Param&)>& write) {
  Steps out;
  comm::run_threads(1, topology::RankGrid(1, config.parallel), {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    for (nn::Param* param : assembly->model.params) write(*param);
    for (int64_t step = 0; step < 3; ++step) {
      const auto batches = test::make_batches(*assembly, step);
      step::StepInput input{batches, step + 1, step * config.train.global_batch_size, false, {}};
      input.on_gradients = [&](double) {
        out.gradients = verify::gather_whole(assembly->process, assembly->model, assembly->optimization,
                                             verify::GatherKind::main_grad);
      };
      const auto result = step::train_step(*assembly, input);
      out.losses.push_back(result.loss);
      out.norms.push_back(result.grad_norm);
    }
    for (const nn::Param* param : assembly->model.params) out.values[param->name] = nn::weight_values(*param).clone();
  });
  return out;
}

void expect_as_with_decoded_values(const std::string& yaml, const Settings& format, const Settings& more,
                                   int64_t num_stored) {
  int64_t stored = 0;
  const Steps got = run_steps(for_ranks(with(yaml, format, more), 1), [&](nn::Param& param) {
    EXPECT_EQ(param.stored != nullptr, !param.data.defined()) << param.name;
    stored += param.stored ? 1 : 0;
    if (param.name.ends_with(config::kLoraB)) param.data.fill_(0.01);  // otherwise no gradient reaches A
  });
  const Steps want = run_steps(for_ranks(with(yaml, kParams, more), 1), [&](nn::Param& param) {
    EXPECT_TRUE(param.data.defined()) << param.name;
    if (param.name.ends_with(config::kLoraB)) param.data.fill_(0.01);
    else if (!config::is_adapter(param.name)) param.data.copy_(got.values.at(param.name));
  });
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  test::expect_equal_state(got.gradients, want.gradients);
  test::expect_equal_state(got.values, want.values);
  EXPECT_EQ(stored, num_stored);
  const Steps exact = run_steps(for_ranks(with(yaml, kParams, more), 1), [](nn::Param&) {});
  EXPECT_NE(got.losses[0], exact.losses[0]) << "the base is not rounded";
}

TEST(StoredWeights, StepsEqualThoseOfDecodedValues) {
  const Settings recompute{"memory.recompute_granularity=full", "memory.recompute_method=uniform",
                           "memory.recompute_num_layers=1"};
  for (const Settings& format : {kFp8, kNvfp4}) {
    SCOPED_TRACE(format[0]);
    expect_as_with_decoded_values(kLlama, format, {}, 8);
    expect_as_with_decoded_values(kLlama, format, recompute, 8);
    expect_as_with_decoded_values(kExperts, format, {"peft.lora_target_modules=experts.up_proj,o_proj"}, 12);
    expect_as_with_decoded_values(kExperts, format, {"model.moe_grouped_gemm=false"}, 12);
  }
}

TEST(StoredWeights, EveryLayoutEqualsOneRank) {
  const std::vector<Case> cases{
      {"tp 2", 2, layout(2, 1)},
      {"tp 2 sp, full recompute", 2,
       layout(2, 1,
              {kSequence, "memory.recompute_granularity=full", "memory.recompute_method=uniform",
               "memory.recompute_num_layers=1"})},
      {"pp 2", 2, layout(1, 2)},
      {"pp 2 zb_h1", 2, layout(1, 2, {"parallel.pipeline_schedule=zb_h1"})},
      {"dp 2 ZeRO 1", 2, layout(1, 1, {kZero1})},
      {"dp 2 tp 2 sp ZeRO 2", 4, layout(2, 1, {kSequence, kZero2})},
      {"cp 2", 2, layout(1, 1, {"parallel.context_parallel_size=2"})},
  };
  for (const Settings& format : {kFp8, kNvfp4}) expect_all_as_on_one_rank(kLlama, format, cases);
}

TEST(StoredWeights, ExpertsInEveryLayoutEqualOneRank) {
  const std::string ep = "parallel.expert_model_parallel_size=2";
  const std::vector<Case> cases{
      {"ep 2", 2, layout(1, 1, {ep})},
      {"tp 2 sp, etp 2, dp 2 ZeRO 1", 4, layout(2, 1, {kSequence, "parallel.expert_tensor_parallel_size=2", kZero1})},
      {"pp 2 ep 2", 4, layout(1, 2, {ep})},
  };
  for (const Settings& format : {kFp8, kNvfp4}) expect_all_as_on_one_rank(kExperts, format, cases);
}

// Magnitudes from 2^-20 to 2^4, and a row of zeros, against the codes of files/small_float.h.
TEST(StoredWeights, Nvfp4EqualsCodesByHand) {
  const at::Tensor index = at::arange(2 * 9 * 48, at::kDouble).view({2, 9, 48});
  const at::Tensor weight =
      at::mul(at::sin(at::mul(index, 12.9)), at::exp2(at::sub(at::mul(at::cos(index), 12), 8))).to(at::kFloat);
  weight.select(1, 5).zero_();
  nn::LayerContext context;
  context.peft.lora_rank = 1, context.peft.base_format = config::BaseFormat::nvfp4;
  nn::Param param = nn::make_param({"w", weight.sizes().vec(), {}, nn::Init::zeros}, context);
  nn::store_as_codes(param, context, {});
  nn::set_weight_values(param, weight);
  const at::Tensor got = nn::weight_values(param);
  for (int64_t matrix = 0; matrix < 2; ++matrix) {
    const double most = weight.select(0, matrix).abs().max().item<double>();
    const double outer = std::exp2(std::ceil(std::log2(most / (464 * 6))));
    for (int64_t row = 0; row < 9; ++row) {
      for (int64_t column = 0; column < 48; ++column) {
        const at::Tensor line = weight.select(0, matrix).select(0, row);
        const auto largest = line.narrow(0, column / 16 * 16, 16).abs().max().item<float>();
        const float quotient = largest / static_cast<float>(6 * outer);
        const double scale = files::e4m3_value(files::e4m3_code(std::max(quotient, 0x1p-6F))) * outer;
        const float number = line[column].item<float>() / static_cast<float>(scale);
        const double want = files::e2m1_value(files::e2m1_code(number)) * scale;
        EXPECT_EQ(got[matrix][row][column].item<double>(), want) << matrix << " " << row << " " << column;
      }
    }
  }
}

std::vector<double> train_losses(const config::Config& config, int64_t ranks, test::State& state) {
  std::vector<double> losses;
  comm::run_threads(static_cast<int>(ranks), topology::RankGrid(static_cast<int>(ranks), config.parallel), {},
                    [&](const comm::World& world) {
                      const auto assembly = step::assemble(config, world, kVocab);
                      std::vector<double> mine;
                      for (int64_t step = 0; step < 5; ++step) mine.push_back(test::step_at(*assembly, step).loss);
                      auto whole = test::whole_state(*assembly);
                      if (world.rank() == 0) losses = mine, state = std::move(whole);
                    });
  return losses;
}

TEST(StoredWeights, GraphsEqualStepsWithoutThem) {
  for (const Settings& format : {kFp8, kNvfp4}) {
    for (const char* const impl : {"full_iteration", "local"}) {
      SCOPED_TRACE(format[0] + " " + impl);
      Settings settings = layout(2, 1, {kSequence, kZero1});
      test::State eager, captured;
      const std::vector<double> want = train_losses(for_ranks(with(kLlama, format, settings), 2), 2, eager);
      settings.insert(settings.end(),
                      {std::string("train.cuda_graph_impl=") + impl, "train.cuda_graph_warmup_steps=1"});
      EXPECT_EQ(train_losses(for_ranks(with(kLlama, format, settings), 2), 2, captured), want);
      test::expect_equal_state(captured, eager);
    }
  }
}

// With 0.75 = 6 x 256 x 2^-11 on rank 0, the smallest scale of a block is 2^-6 x 2^-11, so that 2^-19 becomes 0
// on rank 1. A scale from the shard alone would not lose it.
TEST(StoredWeights, ShardsHaveTheScaleOfTheirMatrix) {
  const config::Config config =
      for_ranks(with(kExperts, kNvfp4, layout(2, 1, {kSequence, "parallel.expert_tensor_parallel_size=2"})), 2);
  comm::run_threads(2, topology::RankGrid(2, config.parallel), {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    const double value = world.rank() == 0 ? 0.75 : 0x1p-19, want = world.rank() == 0 ? 0.75 : 0;
    for (nn::Param* param : assembly->model.params) {
      if (!param->stored) continue;
      nn::set_weight_values(*param, at::full(param->local_shape, value, at::kDouble));
      EXPECT_TRUE(nn::weight_values(*param).eq(want).all().item<bool>()) << param->name;
    }
  });
}

// A checkpoint contains decoded values, which encode to themselves.
TEST(StoredWeights, CheckpointsResumeExactly) {
  const test::TestLayout two{1, 1, 1, 2, false}, tp{2, 1, 1, 1, true};
  for (const char* const dtype : {"fp64", "bf16"}) {
    for (const Settings& format : {kFp8, kNvfp4}) {
      SCOPED_TRACE(format[0] + " " + dtype);
      const test::Folder folder;
      config::Config config = with(kLlama, format, {kZero1, std::string("precision.params_dtype=") + dtype});
      config.data.mock_data = true;
      config.train.train_iters = 10;
      const test::Outcome straight = test::run_leg(config, {two, "", "", 0, 4});
      test::run_leg(config, {two, "", folder.at("a"), 0, 2});
      config.model.init_method_std = 0.3;  // loaded values replace the initial ones
      const test::Outcome resumed = test::run_leg(config, {two, folder.at("a"), folder.at("b"), 2, 4});
      test::expect_equal_state(resumed.state, straight.state);
      EXPECT_EQ(resumed.losses, std::vector<double>(straight.losses.begin() + 2, straight.losses.end()));
      EXPECT_NE(straight.losses[0], straight.losses[3]);
      const test::Outcome sharded = test::run_leg(config, {tp, folder.at("b"), folder.at("c"), 4, 4});
      test::expect_equal_state(sharded.state, straight.state);
      test::expect_equal_state(test::run_leg(config, {{}, folder.at("c"), "", 4, 4}).state, straight.state);
    }
  }
}

// Live bytes of an assembly in bf16, and the bytes of its parameters.
struct Bytes {
  int64_t live = 0, values = 0;
};
Bytes measure_bytes(const std::string& yaml, const Settings& format) {
  Bytes bytes;
  const config::Config config =
      config::resolved(with(yaml, format, {"precision.params_dtype=bf16", "train.train_iters=1"}), 1);
  comm::run_threads(1, topology::RankGrid(1, config.parallel), {}, [&](const comm::World& world) {
    const device::MemoryMeter meter;
    const auto assembly = step::assemble(config, world, kVocab);
    bytes = {meter.bytes(), assembly->model.values_bytes()};
  });
  return bytes;
}

// Blocks of fp8 add 4 bytes for 128 x 128 values. Matrices of nvfp4, which have at least 128 x 128 values, add 4
// bytes.
TEST(StoredWeights, BaseTakesHalfOrLess) {
  constexpr double kScales = 4.0 / (128 * 128 * 2);
  const auto linear_values = [](int64_t hidden, int64_t mlps) {
    return 2 * (hidden * 512 + hidden * 256 + mlps);  // two layers; qkv and the projection after attention
  };
  const int64_t llama = linear_values(256, 3 * 256 * 256), experts = linear_values(128, 5 * 3 * 128 * 256);
  for (const auto& [yaml, values] : {std::pair{kLlama, llama}, std::pair{kExperts, experts}}) {
    const Bytes params = measure_bytes(yaml, kParams), fp8 = measure_bytes(yaml, kFp8),
                nvfp4 = measure_bytes(yaml, kNvfp4);
    for (const Bytes& stored : {fp8, nvfp4}) EXPECT_EQ(params.live - stored.live, params.values - stored.values);
    const auto base = static_cast<double>(2 * values);
    const auto share = [&](const Bytes& stored) { return 1 - static_cast<double>(params.live - stored.live) / base; };
    EXPECT_EQ(share(fp8), 0.5 + kScales);
    EXPECT_GT(share(nvfp4), 0.28125);
    EXPECT_LE(share(nvfp4), 0.28125 + kScales);
  }
}

// The decoded values of another format are not those of a checkpoint.
TEST(StoredWeights, AnotherFormatIsRefused) {
  const test::Folder folder;
  config::Config config = with(kLlama, kFp8);
  config.data.mock_data = true;
  config.train.train_iters = 10;
  test::run_leg(config, {{}, "", folder.at("a"), 0, 1});
  config.peft.base_format = config::BaseFormat::nvfp4;
  const std::string message = test::catch_error([&] { test::run_leg(config, {{}, folder.at("a"), "", 1, 2}); });
  EXPECT_NE(message.find("peft.base_format is nvfp4 here and was fp8"), std::string::npos) << message;
}

TEST(StoredWeights, ShardsOfPartsOfBlocksAreRefused) {
  const auto refusal = [](const Settings& format, const Settings& more) {
    return test::catch_error([&] {
      const config::Config config = for_ranks(with(kLlama, format, more), 2);
      comm::run_threads(2, topology::RankGrid(2, config.parallel), {},
                        [&](const comm::World& world) { step::assemble(config, world, kVocab); });
    });
  };
  const Settings halves_of_192 = layout(2, 1, {"model.ffn_hidden_size=192"});
  EXPECT_EQ(refusal(kNvfp4, halves_of_192), "");
  const std::string message = refusal(kFp8, halves_of_192);
  EXPECT_NE(message.find("a rank's shard has 96 features"), std::string::npos) << message;
}

}  // namespace
}  // namespace metroplex::run::stored_weights_ranks_test

// Frozen parameters and low-rank adapters (config/peft.h) on every kind of layout, against a single-rank reference in
// float64. Tolerances are those of verify/verify.h.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/name_patterns.h"
#include "config/validate.h"
#include "support/error_of.h"
#include "run/run_layouts.h"
#include "run/support.h"

namespace metroplex::run::adapters_ranks_test {
namespace {

using Settings = std::vector<std::string>;

const std::string kSizes =
    " num_layers: 4, hidden_size: 32, num_attention_heads: 8, vocab_size: 50, make_vocab_size_divisible_by: 8";
const std::string kTrain =
    "train: {seq_length: 8, micro_batch_size: 2, global_batch_size: 8}\n"
    "optim: {lr: 1.0e-2, weight_decay: 0.1, clip_grad: 0.5}\n";

const std::string kLlama =
    "model: {family: llama, num_query_groups: 4, ffn_hidden_size: 48, hidden_dropout: 0.1," + kSizes + "}\n" + kTrain;
const std::string kGpt = "model: {family: gpt, attention_dropout: 0.1," + kSizes + "}\n" + kTrain;
const std::string kLatent =
    "model: {family: llama, ffn_hidden_size: 48, multi_latent_attention: true, q_lora_rank: 12, kv_lora_rank: 10,"
    " qk_head_dim: 6, qk_pos_emb_head_dim: 4, v_head_dim: 5, qk_layernorm: true," +
    kSizes + "}\n" + kTrain;
const std::string kExperts =
    "model: {family: mixtral, num_query_groups: 4, ffn_hidden_size: 24, moe_ffn_hidden_size: 16, num_moe_experts: 4,"
    " moe_layer_freq: \"[1,0,1,1]\", moe_shared_expert_intermediate_size: 8, moe_shared_expert_gate: true,"
    " hidden_dropout: 0.1, init_method_std: 0.2," +
    kSizes + "}\n" + kTrain;

const Settings kDora{"peft.lora_rank=3", "peft.lora_alpha=6", "peft.use_dora=true", "model.from=weights"};
const Settings kAdapters{"peft.lora_rank=3", "peft.lora_alpha=6", "peft.lora_dropout=0.25"};
const Settings kFrozen{"train.freeze=embedding.*,decoder.layers.1.*,*.linear_fc2.*,*layernorm*"};

config::Config with(const std::string& yaml, const Settings& first, const Settings& second = {}) {
  Settings all = first;
  all.insert(all.end(), second.begin(), second.end());
  return config::parse(yaml, all);
}

struct Case {
  const char* name;
  int64_t ranks;
  Settings settings;
};

Settings layout(int64_t tp, int64_t pp, const Settings& more = {}) {
  Settings all{"parallel.tensor_model_parallel_size=" + std::to_string(tp),
               "parallel.pipeline_model_parallel_size=" + std::to_string(pp), "parallel.ddp_bucket_size=500"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
std::string zero(const char* strategy) { return std::string("parallel.data_parallel_sharding_strategy=") + strategy; }

const std::string kSequence = "parallel.sequence_parallel=true";

std::vector<Case> dense_cases() {
  return {
      {"tp 2", 2, layout(2, 1)},
      {"tp 2 sp", 2, layout(2, 1, {kSequence})},
      {"tp 4 sp, full recompute", 4,
       layout(4, 1,
              {kSequence, "memory.recompute_granularity=full", "memory.recompute_method=uniform",
               "memory.recompute_num_layers=1"})},
      {"tp 2, selective recompute", 2,
       layout(2, 1, {"memory.recompute_granularity=selective", "memory.recompute_modules=core_attn,mlp,layernorm"})},
      {"pp 2, activation recompute", 2,
       layout(1, 2, {"memory.recompute_granularity=selective", "memory.recompute_modules=activation"})},
      {"pp 2 vpp 2 dp 2", 4,
       layout(1, 2, {"parallel.virtual_pipeline_model_parallel_size=2", "parallel.overlap_p2p_comm=true"})},
      {"dp 4 ZeRO 1", 4, layout(1, 1, {zero("optim")})},
      {"dp 2 tp 2 sp ZeRO 2", 4, layout(2, 1, {kSequence, zero("optim_grads")})},
      {"dp 2 pp 2 ZeRO 3", 4, layout(1, 2, {zero("optim_grads_params")})},
      {"dp 2 tp 2 pp 2 sp ZeRO 3", 8, layout(2, 2, {kSequence, zero("optim_grads_params")})},
      {"cp 2 tp 2", 4, layout(2, 1, {"parallel.context_parallel_size=2"})},
      {"cp 2 dp 2 ZeRO 1", 4, layout(1, 1, {"parallel.context_parallel_size=2", zero("optim")})},
  };
}

std::vector<Case> expert_cases() {
  return {
      {"ep 2", 2, layout(1, 1, {"parallel.expert_model_parallel_size=2"})},
      {"tp 2 sp, ep 2", 2,
       layout(2, 1, {kSequence, "parallel.expert_model_parallel_size=2", "parallel.expert_tensor_parallel_size=1"})},
      {"tp 2 sp, etp 2, dp 2 ZeRO 3", 4,
       layout(2, 1, {kSequence, "parallel.expert_tensor_parallel_size=2", zero("optim_grads_params")})},
      {"pp 2 ep 2 dp 2 ZeRO 1", 4, layout(1, 2, {"parallel.expert_model_parallel_size=2", zero("optim")})},
  };
}

void expect_all_as_on_one_rank(const std::string& yaml, const Settings& trained, const std::vector<Case>& cases) {
  std::map<int64_t, verify::LayoutRun> references;
  for (const Case& test_case : cases) {
    SCOPED_TRACE(test_case.name);
    expect_equals_single_rank(for_ranks(with(yaml, trained, test_case.settings), test_case.ranks), test_case.ranks,
                              references);
  }
}

// Full values and optimizer state after three steps on the layout.
std::map<std::string, at::Tensor> after(const config::Config& config, int64_t ranks, int64_t steps) {
  std::map<std::string, at::Tensor> state;
  comm::run_threads(static_cast<int>(ranks), topology::RankGrid(static_cast<int>(ranks), config.parallel), {},
                    [&](const comm::World& world) {
                      const auto assembly = step::assemble(config, world, kVocab);
                      EXPECT_EQ(assembly->graphs.step != nullptr,
                                config.train.cuda_graph_impl == config::CudaGraphImpl::full_iteration);
                      EXPECT_EQ(assembly->graphs.partial != nullptr, config.train.captures_parts());
                      for (int64_t step = 0; step < steps; ++step) test::step_at(*assembly, step);
                      for (const nn::Param* param : assembly->model.params) {
                        EXPECT_EQ(param->frozen, !config::trains(config, param->name)) << param->name;
                        if (param->frozen) { EXPECT_FALSE(param->main_grad.defined()) << param->name; }
                      }
                      auto mine = test::whole_state(*assembly);
                      if (world.rank() == 0) state = std::move(mine);
                    });
  return state;
}

config::Config trained(const std::string& yaml, const Settings& settings, int64_t ranks) {
  return for_ranks(with(yaml, settings), ranks);
}

TEST(Adapters, EveryLayoutGivesWhatOneRankGives) { expect_all_as_on_one_rank(kLlama, kAdapters, dense_cases()); }

TEST(Adapters, DoraGivesTheSameInEveryLayout) {
  expect_all_as_on_one_rank(kLlama, kDora, dense_cases());
  expect_all_as_on_one_rank(kGpt, kDora, {{"tp 2 sp", 2, layout(2, 1, {kSequence})}, {"pp 2", 2, layout(1, 2)}});
  expect_all_as_on_one_rank(kLatent, kDora, {{"tp 2", 2, layout(2, 1)}, {"tp 2 sp", 2, layout(2, 1, {kSequence})}});
}

TEST(Adapters, OfLatentAttentionToo) {
  expect_all_as_on_one_rank(kLatent, kAdapters,
                            {{"tp 2", 2, layout(2, 1)},
                             {"tp 2 sp", 2, layout(2, 1, {kSequence})},
                             {"pp 2 dp 2", 4, layout(1, 2, {zero("optim_grads_params")})}});
}

TEST(Adapters, BesideExpertsToo) { expect_all_as_on_one_rank(kExperts, kAdapters, expert_cases()); }

TEST(Adapters, OfRoutedExpertsInEveryLayout) {
  const Settings routed{"peft.lora_rank=3", "peft.lora_alpha=6", "peft.rank_pattern=experts.up_proj=2",
                        "peft.lora_target_modules=experts.gate_proj,experts.up_proj,experts.down_proj,o_proj"};
  std::vector<Case> cases = expert_cases();
  cases.push_back(
      {"tp 2 sp, etp 2, ep 2", 4,
       layout(2, 1, {kSequence, "parallel.expert_tensor_parallel_size=2", "parallel.expert_model_parallel_size=2"})});
  cases.push_back({"ep 2, one product per expert", 2,
                   layout(1, 1, {"parallel.expert_model_parallel_size=2", "model.moe_grouped_gemm=false"})});
  expect_all_as_on_one_rank(kExperts, routed, cases);
}

TEST(Adapters, EmbeddingAndHeadAreTrainedWithThem) {
  Settings both = kAdapters, tied = kAdapters;
  both.push_back("peft.modules_to_save=embed_tokens,lm_head");
  tied.push_back("peft.modules_to_save=embed_tokens");
  expect_all_as_on_one_rank(kLlama, both, dense_cases());
  expect_all_as_on_one_rank(kGpt, tied,
                            {{"pp 2", 2, layout(1, 2)},
                             {"tp 2 pp 2 sp", 4, layout(2, 2, {kSequence})},
                             {"pp 2 dp 2 ZeRO 3", 4, layout(1, 2, {zero("optim_grads_params")})}});
  const std::string embedding = "embedding.word_embeddings.weight", head = "output_layer.weight";
  for (const auto& [word, moves] : {std::pair{"embed_tokens", &embedding}, std::pair{"lm_head", &head}}) {
    Settings one = kAdapters;
    one.push_back(std::string("peft.modules_to_save=") + word);
    const config::Config config = trained(kLlama, one, 1);
    const auto before = after(config, 1, 0), behind = after(config, 1, 2);
    for (const std::string& name : {embedding, head})
      EXPECT_NE(at::equal(before.at(name), behind.at(name)), name == *moves) << word << " " << name;
  }
}

TEST(Adapters, OfSomeLayersWithoutDropout) {
  expect_all_as_on_one_rank(kGpt,
                            {"peft.lora_rank=2", "peft.use_rslora=true", "peft.lora_target_modules=v_proj,up_proj"},
                            {{"tp 2 sp", 2, layout(2, 1, {kSequence})}, {"pp 2", 2, layout(1, 2)}});
}

TEST(Freezing, EveryLayoutGivesWhatOneRankGives) { expect_all_as_on_one_rank(kLlama, kFrozen, dense_cases()); }

TEST(Freezing, OfATiedHeadBothHoldersAreFrozenOrTrained) {
  const std::vector<Case> cases{{"pp 2", 2, layout(1, 2)},
                                {"tp 2 pp 2 sp", 4, layout(2, 2, {kSequence})},
                                {"pp 2 dp 2 ZeRO 3", 4, layout(1, 2, {zero("optim_grads_params")})}};
  expect_all_as_on_one_rank(kGpt, {"train.freeze=embedding.word_embeddings.weight"}, cases);
  expect_all_as_on_one_rank(kGpt, {"train.trainable=embedding.word_embeddings.weight"}, cases);
}

TEST(Freezing, OfExpertsRoutersAndSharedOnes) {
  expect_all_as_on_one_rank(kExperts, {"train.freeze=*.experts.linear_fc1.weight,*.router.*,*.gate_weight"},
                            expert_cases());
  expect_all_as_on_one_rank(kExperts, {"train.trainable=*.router.*"}, expert_cases());
}

TEST(Freezing, WhateverTheOptimizer) {
  for (const char* optimizer : {"muon", "sgd", "lion"}) {
    for (const Settings& what : {kAdapters, kFrozen}) {
      Settings trained = what;
      trained.push_back(std::string("optim.optimizer=") + optimizer);
      expect_all_as_on_one_rank(kLlama, trained, {{optimizer, 4, layout(2, 1, {kSequence, zero("optim_grads")})}});
    }
  }
}

TEST(Freezing, FrozenParametersKeepTheirBitsAndHaveNoState) {
  for (const Settings& frozen : {kFrozen, kAdapters}) {
    for (const char* strategy : {"no_shard", "optim", "optim_grads_params"}) {
      SCOPED_TRACE(std::string(strategy) + " " + frozen[0]);
      Settings settings = layout(2, 1, {kSequence, zero(strategy)});
      settings.insert(settings.end(), frozen.begin(), frozen.end());
      const config::Config config = trained(kLlama, settings, 4);
      const auto before = after(config, 4, 0), behind = after(config, 4, 3);
      size_t frozen_ones = 0, moved = 0;
      for (const auto& [name, values] : before) {
        if (name.find(' ') != std::string::npos) {
          EXPECT_TRUE(config::trains(config, name.substr(0, name.find(' ')))) << name;
        } else if (config::trains(config, name)) {
          EXPECT_FALSE(at::equal(values, behind.at(name))) << name;
          EXPECT_TRUE(behind.contains(name + " exp_avg")) << name;
          ++moved;
        } else {
          EXPECT_TRUE(at::equal(values, behind.at(name))) << name;
          ++frozen_ones;
        }
      }
      EXPECT_GT(frozen_ones, 10u);
      EXPECT_GE(moved, 10u);
    }
  }
}

TEST(Freezing, OfTheBiasByWhichARouterBalances) {
  const std::string yaml =
      "model: {family: gpt, add_bias_linear: false, normalization: RMSNorm, num_moe_experts: 4, ffn_hidden_size: 16,"
      " moe_router_score_function: sigmoid, moe_router_enable_expert_bias: true, moe_router_load_balancing_type: "
      "none," +
      kSizes + "}\n" + kTrain;
  const std::string name = "decoder.layers.0.mlp.router.expert_bias";
  for (const auto& [settings, moves] : {std::pair{Settings{}, true},
                                        {Settings{"train.freeze=*.router.*"}, false},
                                        {Settings{"peft.lora_rank=2"}, false}}) {
    const auto state = after(trained(yaml, settings, 1), 1, 2);
    EXPECT_EQ(state.at(name).count_nonzero().item<int64_t>() > 0, moves) << settings.size();
  }
}

// A rank loads only its shard of a frozen parameter; the others receive it before its first use.
TEST(Freezing, LoadedValuesReachAllRanks) {
  const config::Config config =
      trained(kLlama, {zero("optim"), "parallel.overlap_param_gather=false", kFrozen[0]}, 2);
  comm::run_threads(2, topology::RankGrid(2, config.parallel), {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    for (const distributed::Shard& slice : assembly->model.slices) slice.values.fill_(2);
    assembly->model.families.loaded();
    assembly->model.families.finish_gathers();
    for (const nn::Param* param : assembly->model.params)
      EXPECT_TRUE(param->data.eq(2).all().item<bool>()) << param->name;
  });
}

// Loss and gradients of one step on one rank, for the weights that `write` sets.
struct Gradients {
  double loss = 0;
  std::map<std::string, at::Tensor> values, gradients;
};
Gradients compute_gradients(const config::Config& config, const std::function<void(nn::Param&)>& write) {
  Gradients out;
  comm::run_threads(1, topology::RankGrid(1, config.parallel), {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, kVocab);
    for (nn::Param* param : assembly->model.params) write(*param);
    for (const nn::Param* param : assembly->model.params) out.values[param->name] = param->data.clone();
    const auto batches = test::make_batches(*assembly, 0);
    step::StepInput input{batches, 1, 0, false, {}};
    input.on_gradients = [&](double) {
      out.gradients = verify::gather_whole(assembly->process, assembly->model, assembly->optimization,
                                           verify::GatherKind::main_grad);
    };
    out.loss = step::train_step(*assembly, input).loss;
  });
  return out;
}

at::Tensor select_rows(const at::Tensor& whole, const config::AdapterBox& box) {
  return whole.view({box.repeats, box.width, whole.size(1)}).narrow(1, box.begin, box.size);
}

// Against the same model with weights W + s B A, whose gradient G gives s B^T G and s G A^T. Each float64 sum has up
// to 16 tokens x 48 terms of about 1.
void expect_the_formula(const std::string& yaml, const Settings& peft, double scale) {
  constexpr double kRounding = 1e-12;
  const config::Config adapted = trained(yaml, peft, 1), plain = trained(yaml, {}, 1);
  const Gradients got = compute_gradients(adapted, [](nn::Param& param) {
    if (!config::is_adapter(param.name) && !param.name.ends_with(".bias")) return;
    const auto shift = static_cast<double>(param.name.size());
    const double largest = config::is_adapter(param.name) ? 0.3 : 0.01;
    param.data.copy_(
        at::arange(param.numel(), param.data.options()).add_(shift).sin_().mul_(largest).view_as(param.data));
  });
  std::map<std::string, at::Tensor> merged;
  std::map<std::string, config::AdapterPlace> places;
  for (const auto& [name, a] : got.values) {
    if (!config::is_adapter(name)) merged.try_emplace(name, a.clone());
    if (!name.ends_with(config::kLoraA)) continue;
    const auto place = config::adapter_place(adapted.model, config::adapted_module(name));
    ASSERT_TRUE(place) << name;
    places.emplace(config::adapted_module(name), *place);
  }
  std::map<std::string, at::Tensor> unscaled;  // with DoRA: W + s B A
  for (const auto& [module, place] : places) {
    const at::Tensor delta = got.values.at(module + config::kLoraB).mm(got.values.at(module + config::kLoraA));
    const at::Tensor rows = select_rows(merged.at(place.linear + ".weight"), place.box);
    rows.add_(delta.view({place.box.repeats, place.box.size, -1}), scale);
    if (!adapted.peft.use_dora) continue;
    unscaled[module] = rows.clone();
    rows.mul_(got.values.at(module + config::kLoraMagnitude).view({place.box.repeats, place.box.size, 1}));
    rows.div_(unscaled[module].norm(2, {-1}, true));
  }
  const Gradients want = compute_gradients(plain, [&](nn::Param& param) { param.data.copy_(merged.at(param.name)); });
  EXPECT_NEAR(got.loss, want.loss, kRounding);
  EXPECT_EQ(got.gradients.size(), (adapted.peft.use_dora ? 3 : 2) * places.size());
  for (const auto& [module, place] : places) {
    at::Tensor g =
        select_rows(want.gradients.at(place.linear + ".weight"), place.box).reshape({place.box.rows(), -1});
    if (adapted.peft.use_dora) {  // the length is a constant in backward, as in PEFT
      const at::Tensor rows = unscaled.at(module).reshape(g.sizes()), lengths = rows.norm(2, {-1});
      const at::Tensor dm = (g * rows).sum(-1).div_(lengths);
      EXPECT_LE((got.gradients.at(module + config::kLoraMagnitude) - dm).abs().max().item<double>(), kRounding);
      g = g * got.values.at(module + config::kLoraMagnitude).div(lengths).unsqueeze(1);
    }
    const at::Tensor &a = got.values.at(module + config::kLoraA), &b = got.values.at(module + config::kLoraB);
    const at::Tensor da = b.t().mm(g).mul_(scale), db = g.mm(a.t()).mul_(scale);
    EXPECT_GT(da.abs().max().item<double>(), 1e6 * kRounding) << module;
    EXPECT_LE((got.gradients.at(module + config::kLoraA) - da).abs().max().item<double>(), kRounding) << module;
    EXPECT_LE((got.gradients.at(module + config::kLoraB) - db).abs().max().item<double>(), kRounding) << module;
  }
}

TEST(Adapters, AreTheWeightsPlusTheProductInForwardAndBackward) {
  expect_the_formula(kLlama, {"peft.lora_rank=3", "peft.lora_alpha=6"}, 2);
  expect_the_formula(kLatent, {"peft.lora_rank=4", "peft.use_rslora=true", "peft.lora_alpha=5"}, 2.5);
  expect_the_formula(kGpt, {"peft.lora_rank=1", "peft.lora_alpha=0.5"}, 0.5);
}

TEST(Adapters, DoraScalesRowsToTheirMagnitudes) {
  expect_the_formula(kLlama, kDora, 2);
  expect_the_formula(kLatent, kDora, 2);
  expect_the_formula(kGpt, kDora, 2);
}

TEST(Adapters, BeginAsTheModelWithoutThem) {
  const Gradients base = compute_gradients(trained(kGpt, {}, 1), [](nn::Param&) {});
  const Gradients adapted = compute_gradients(trained(kGpt, {"peft.lora_rank=3"}, 1), [](nn::Param&) {});
  EXPECT_EQ(adapted.loss, base.loss);
  for (const auto& [name, values] : base.values) EXPECT_TRUE(at::equal(values, adapted.values.at(name))) << name;
  for (const auto& [name, values] : adapted.values) {
    if (name.ends_with(config::kLoraB)) { EXPECT_EQ(values.abs().max().item<double>(), 0) << name; }
    if (!name.ends_with(config::kLoraA)) continue;
    // Uniform within b = 1 / sqrt(in): variance b^2 / 3. The estimate from n numbers has relative error sqrt(4 / 5 /
    // n); 5 sigma.
    const double bound = 1 / std::sqrt(static_cast<double>(values.size(1))), n = static_cast<double>(values.numel());
    EXPECT_LE(values.abs().max().item<double>(), bound) << name;
    EXPECT_NEAR(values.square().mean().item<double>() / (bound * bound / 3), 1, 5 * std::sqrt(0.8 / n)) << name;
  }
}

TEST(Adapters, GraphsHaveTheBitsOfStepsWithoutThem) {
  for (const char* impl : {"full_iteration", "local"}) {
    for (const Settings& what : {kAdapters, kFrozen}) {
      SCOPED_TRACE(std::string(impl) + " " + what[0]);
      Settings settings = layout(2, 1, {kSequence, zero("optim")});
      settings.insert(settings.end(), what.begin(), what.end());
      const auto eager = after(trained(kLlama, settings, 4), 4, 5);
      settings.insert(settings.end(),
                      {std::string("train.cuda_graph_impl=") + impl, "train.cuda_graph_warmup_steps=1"});
      test::expect_equal_state(after(trained(kLlama, settings, 4), 4, 5), eager);
    }
  }
}

std::string refusal(const std::string& yaml, const Settings& settings, int64_t ranks) {
  return test::catch_error([&] { after(trained(yaml, settings, ranks), ranks, 0); });
}

TEST(Freezing, PatternsThatFitNothingAndNothingLeftToTrainAreRefused) {
  Settings far = layout(1, 2, {"train.freeze=decoder.layers.7.*"});
  EXPECT_NE(refusal(kLlama, far, 2).find("train.freeze: no parameter has a name that 'decoder.layers.7.*' matches"),
            std::string::npos);
  EXPECT_NE(refusal(kLlama, {"train.trainable=embedding.word_embedding.weight"}, 1)
                .find("the nearest is embedding.word_embeddings.weight"),
            std::string::npos);
  EXPECT_NE(refusal(kLlama, layout(1, 2, {"train.freeze=*"}), 2).find("leave no parameter to train"),
            std::string::npos);
  EXPECT_NE(refusal(kExperts, {"peft.lora_rank=2", "peft.lora_target_modules=qproj"}, 1).find("did you mean q_proj?"),
            std::string::npos);
  EXPECT_NE(refusal("model: {family: mixtral, num_moe_experts: 4, num_query_groups: 4, ffn_hidden_size: 16," +
                        kSizes + "}\n" + kTrain,
                    {"peft.lora_rank=2", "peft.lora_target_modules=gate_proj"}, 1)
                .find("did you mean experts.gate_proj?"),
            std::string::npos);
  for (const char* nothing : {"peft.lora_target_modules = layers.7.mlp.up_proj", "peft.rank_pattern = oproj=2",
                              "peft.alpha_pattern = layers.7..*=2"}) {
    const std::string text = nothing;
    const size_t middle = text.find(" = ");
    Settings settings = layout(1, 2, {"peft.lora_rank=2", text.substr(0, middle) + "=" + text.substr(middle + 3)});
    EXPECT_NE(refusal(kLlama, settings, 2).find(text + ": must select a module with an adapter"), std::string::npos)
        << text;
  }
  EXPECT_NE(refusal(kLlama, {"peft.lora_alpha=2"}, 1).find("has no effect without peft.lora_rank"),
            std::string::npos);
}

}  // namespace
}  // namespace metroplex::run::adapters_ranks_test

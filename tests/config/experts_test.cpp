// The keys of experts: layers with experts, derived sizes, and rejected combinations.
#include "config/experts.h"

#include <random>

#include <gtest/gtest.h>

#include "config/model_function.h"
#include "config/support.h"

namespace metroplex::config::experts_test {
namespace {

std::string pattern(const std::string& text, int64_t layers) {
  std::string problem;
  const auto read = read_moe_layers(text, layers, problem);
  if (!read) return problem;
  std::string shown;
  for (const bool moe : *read) shown += moe ? '1' : '0';
  return shown;
}

TEST(ExpertRows, HaveTheirOwnWidth) {
  Model model;
  model.hidden_size = 16, model.num_moe_experts = 4;
  EXPECT_EQ(expert_row_width(model), 16);
  model.moe_latent_size = 6;
  EXPECT_EQ(expert_row_width(model), 6);
}

// No other layer of this model uses the key.
TEST(ExpertRows, ProjectionsMayHaveBiases) {
  Model with, without;
  for (Model* const model : {&with, &without}) {
    model->num_moe_experts = 4, model->add_bias_linear = false;
    model->add_mlp_bias = model == &with;
  }
  EXPECT_TRUE(differing_keys(with, without).empty());
  with.moe_latent_size = without.moe_latent_size = 6;
  const std::vector<Difference> differences = differing_keys(with, without);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].key, "model.add_mlp_bias");
}

TEST(ExpertLayers, FollowAFrequencyOrAPattern) {
  EXPECT_EQ(pattern("1", 4), "1111");
  EXPECT_EQ(pattern("2", 5), "10101");
  EXPECT_EQ(pattern("7", 4), "1000");
  EXPECT_EQ(pattern("[1,0,1]", 3), "101");
  EXPECT_EQ(pattern("[1, 0, 1,]", 3), "101");
  EXPECT_EQ(pattern("([1]*3+[0]*1)*2", 8), "11101110");
  EXPECT_EQ(pattern("([0]+[1]*3)", 4), "0111");
  EXPECT_EQ(pattern("[0]*(2+1)+2*[1,0]+[]", 7), "0001010");
  EXPECT_EQ(pattern("[0]*2*2", 4), "0000");
}

TEST(ExpertLayers, SayWhatIsWrongWithAPattern) {
  EXPECT_EQ(pattern("0", 4), "it is neither a whole number of at least 1 nor a pattern with [");
  EXPECT_EQ(pattern("", 4), pattern("0", 4));
  EXPECT_EQ(pattern("2x", 4), pattern("0", 4));
  EXPECT_EQ(pattern("[1,0]", 4), "it has 2 entries for model.num_layers = 4");
  EXPECT_EQ(pattern("[1,2]", 2), "its entry 2 is neither 0 nor 1");
  EXPECT_EQ(pattern("[1,0", 2), "a [ is never closed");
  EXPECT_EQ(pattern("([1]", 1), "a ( is never closed");
  EXPECT_EQ(pattern("[1]]", 1), "']' follows the pattern");
  EXPECT_EQ(pattern("[1]+1", 2), "a list and a number cannot be added");
  EXPECT_EQ(pattern("[1]*[1]", 1), "two lists cannot be multiplied");
  EXPECT_EQ(pattern("[[1]]", 1), "a list contains a list");
  EXPECT_EQ(pattern("[1]*", 1), "a number or a list is missing at its end");
  EXPECT_EQ(pattern("[1]*-1", 1), "a number or a list is expected at '-1'");
  EXPECT_EQ(pattern("[1,1]*131072", 1), "it has more than 131072 entries");
  EXPECT_EQ(pattern("[1]*131072*131072*131072*131072", 1), "it has more than 131072 entries");
  EXPECT_EQ(pattern("[1]*99999999999999999999", 1), "it has a number above 131072");
  EXPECT_EQ(pattern(std::string(100000, '(') + "[", 1), "its parentheses nest too deep");
  EXPECT_EQ(pattern(std::string(100000, '['), 1), "its parentheses nest too deep");
}

TEST(ExpertLayers, AnyTextIsAPatternOrAProblem) {
  const std::string letters = "01239[](),+*- x";
  std::minstd_rand random(7);
  int patterns = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = i % 2 == 0 ? "[" : "([1]*3+[0])*2";
    for (int n = static_cast<int>(random() % 6); n >= 0; --n)
      text.insert(random() % (text.size() + 1), 1, letters[random() % letters.size()]);
    std::string problem;
    const auto layers = read_moe_layers(text, 8, problem);
    EXPECT_NE(layers.has_value(), !problem.empty()) << text;
    if (layers) { EXPECT_EQ(layers->size(), 8U) << text; }
    patterns += layers ? 1 : 0;
  }
  EXPECT_GT(patterns, 10);
}

TEST(ExpertLayers, OfADenseModelAreNone) {
  Model model;
  EXPECT_EQ(moe_layers(model), std::vector<bool>(4, false));
  model.num_moe_experts = 2;
  model.moe_layer_freq = "[0,1,1,1]";
  EXPECT_EQ(moe_layers(model), (std::vector<bool>{false, true, true, true}));
  model.moe_layer_freq = "[0,1]";
  const std::string error = catch_error([&] { moe_layers(model); });
  for (const char* words : {"model.moe_layer_freq = [0,1]", "2 entries for model.num_layers = 4", "write N"})
    EXPECT_NE(error.find(words), std::string::npos) << error;
}

TEST(AuxLosses, AreThoseWithACoefficient) {
  Model model;
  EXPECT_TRUE(aux_losses(model).empty());
  model.moe_router_load_balancing_type = "seq_aux_loss, aux_loss,global_aux_loss";
  model.moe_aux_loss_coeff = "1e-2, 0,2";
  const std::vector<AuxLoss> losses = aux_losses(model);
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_EQ(losses[0].type, AuxLossType::seq_aux_loss);
  EXPECT_EQ(losses[0].coeff, 1e-2);
  EXPECT_EQ(losses[1].type, AuxLossType::global_aux_loss);
  EXPECT_EQ(losses[1].coeff, 2);
  for (const auto& [text, words] : {std::pair{"1,2", "2 numbers for the 3 words"},
                                    {"1,x,2", "'x' is not a number"},
                                    {"1,,2", "'' is not a number"},
                                    {"1,-1,2", "'-1' is not a number"},
                                    {"1,inf,2", "'inf' is not a number"},
                                    {"1,nan,2", "'nan' is not a number"}}) {
    model.moe_aux_loss_coeff = text;
    const std::string error = catch_error([&] { aux_losses(model); });
    EXPECT_NE(error.find(words), std::string::npos) << error;
    EXPECT_NE(error.find("model.moe_aux_loss_coeff = "), std::string::npos) << error;
  }
}

TEST(ExpertCapacity, RoundsUpAsMegatronDoes) {
  Model model;
  model.num_moe_experts = 8;
  model.moe_router_topk = 2;
  model.moe_expert_capacity_factor = 1;
  EXPECT_EQ(expert_capacity(model, 64), 16);
  EXPECT_EQ(expert_capacity(model, 65), 17);
  model.moe_expert_capacity_factor = 8;
  EXPECT_EQ(expert_capacity(model, 65), 65);  // 130 would exceed the number of tokens
  for (const double beyond_integers : {1e18, 1e30, 1.7e308}) {
    model.moe_expert_capacity_factor = beyond_integers;
    EXPECT_EQ(expert_capacity(model, 65), 65) << beyond_integers;
    EXPECT_EQ(expert_capacity(model, 0), 0) << beyond_integers;
  }
  model.num_moe_experts = 10;
  model.moe_router_topk = 1;
  model.moe_expert_capacity_factor = 1.1;
  EXPECT_EQ(expert_capacity(model, 100), 11);  // 100 * 1.1 / 10 would be 12: 100 * 1.1 is above 110
}

TEST(StaticBufferSizes, AreMultiplesOfTheEvenLoadUpToAllThatCanCome) {
  Model model;
  model.num_moe_experts = 8;
  model.moe_router_topk = 3;
  model.moe_expert_rank_capacity_factor = 1;
  EXPECT_EQ(rank_capacity(model, 10, 1, 4), 30);    // 4 ranks of 10 tokens, 3 rows each, over 4
  EXPECT_EQ(rank_capacity(model, 10, 2, 4), 60);    // each row to both ranks of etp
  EXPECT_EQ(rank_pair_capacity(model, 10, 4), 20);  // a token goes to at most both experts of a rank
  model.moe_expert_rank_capacity_factor = 1.01;
  EXPECT_EQ(rank_capacity(model, 10, 1, 4), 31);
  model.moe_rank_pair_capacity_factor = 1.01;
  EXPECT_EQ(rank_pair_capacity(model, 10, 4), 8);  // of 7.575
  for (const double beyond_integers : {1e3, 1e30, 1.7e308}) {
    model.moe_expert_rank_capacity_factor = model.moe_rank_pair_capacity_factor = beyond_integers;
    EXPECT_EQ(rank_capacity(model, 10, 1, 4), 80) << beyond_integers;
    EXPECT_EQ(rank_pair_capacity(model, 10, 4), 20) << beyond_integers;
    EXPECT_EQ(rank_capacity(model, 0, 1, 4), 0) << beyond_integers;
  }
}

TEST(ExpertFill, IsTheEvenPartOfABuffer) {
  Model model;
  model.num_moe_experts = 8;
  model.moe_router_topk = 3;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  EXPECT_EQ(expert_fill(model, 1, 4), 1);
  // Two local experts: at most 2 of the 3 rows of a token arrive, 3/4 of one on average.
  model.moe_token_dispatcher_type = TokenDispatcher::allgather;
  EXPECT_DOUBLE_EQ(expert_fill(model, 1, 4), 3.0 / 4 / 2);
  EXPECT_DOUBLE_EQ(expert_fill(model, 2, 4), 3.0 / 4 / 2);
  EXPECT_EQ(expert_fill(model, 2, 1), 1);
  model.moe_token_dispatcher_type = TokenDispatcher::static_buffer;
  model.moe_expert_rank_capacity_factor = 1.5;
  EXPECT_NEAR(expert_fill(model, 1, 4), 1 / 1.5, 1e-5);  // the capacity is rounded up to a row
}

TEST(ExpertDispatcher, IsLocalForOneRank) {
  Model model;
  EXPECT_EQ(token_dispatcher(model, 1), TokenDispatcher::local);
  EXPECT_EQ(token_dispatcher(model, 2), TokenDispatcher::alltoall);
  model.moe_token_dispatcher_type = TokenDispatcher::allgather;
  EXPECT_EQ(token_dispatcher(model, 1), TokenDispatcher::allgather);
}

// Valid on 8 ranks: tp 2, pp 2, ep 2, etp 1.
std::vector<std::string> with_experts(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"model.num_moe_experts=4", "model.add_bias_linear=false",
                                  "parallel.sequence_parallel=true", "parallel.expert_model_parallel_size=2",
                                  "parallel.expert_tensor_parallel_size=1"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return all;
}

// Each with replicas, four experts on two ranks.
const std::vector<std::string> kReplicas{"parallel.expert_model_parallel_size=2", "model.moe_enable_echo=true",
                                         "model.moe_num_echo_experts=2"};

TEST(Experts, GreedySplitsInTwoPhases) {
  Model model;
  EXPECT_EQ(echo_split(model), EchoSplit::local_first);
  model.moe_echo_planner = EchoPlanner::greedy;
  EXPECT_EQ(echo_split(model), EchoSplit::breadth_then_depth);
  model.moe_echo_split = EchoSplit::local_first;
  EXPECT_EQ(echo_split(model), EchoSplit::local_first);
}

TEST(Experts, ClonesArePlannedOnAGpuWhereTheWarpsProgramCan) {
  Model model;
  for (const auto& planner : kWords<EchoPlanner>) {
    model.moe_echo_planner = planner.value;
    model.moe_echo_enable_random_offloading = false;
    EXPECT_EQ(echo_plans_on_device(model),
              planner.value == EchoPlanner::capfill || planner.value == EchoPlanner::exact)
        << planner.text;
    model.moe_echo_enable_random_offloading = true;
    EXPECT_FALSE(echo_plans_on_device(model)) << planner.text;
  }
}

// A value suggested by a message is accepted, even if the sum of two decimals exceeds the decimal that it represents.
TEST(ExpertRules, BuffersMayBeAsLargeAsCapfillIsContentWith) {
  for (int eps = 1; eps < 600; ++eps) {
    std::vector<std::string> all = kReplicas;
    const auto text = [](const char* format, int n) {
      char digits[16];
      std::snprintf(digits, sizeof digits, format, n);
      return std::string(digits);
    };
    for (const std::string& key :
         {std::string("model.moe_token_dispatcher_type=static_buffer"), "model.moe_echo_eps=0." + text("%04d", eps),
          "model.moe_expert_rank_capacity_factor=1." + text("%04d", eps)})
      all.push_back(key);
    EXPECT_EQ(described(violations(good(with_experts(all)), kWorld)), "nothing") << eps;
  }
}

// Three ranks share an expert's gradient: two instances of the optimizer would be unequal.
TEST(ExpertRules, InstancesOfTheOptimizerDivideTheRanksOfAnExpert) {
  const auto problems = [](const std::string& instances) {
    return described(violations(good(with_experts({"parallel.expert_model_parallel_size=4",
                                                   "parallel.num_distributed_optimizer_instances=" + instances,
                                                   "parallel.data_parallel_sharding_strategy=optim"})),
                                3 * kWorld));
  };
  EXPECT_NE(problems("2").find("must divide the 3 ranks that share an expert's gradient"), std::string::npos)
      << problems("2");
  EXPECT_EQ(problems("3").find("share an expert's gradient"), std::string::npos) << problems("3");
}

// int(8/3 * 16 / 64) * 64 is 0: only a dense layer then lacks its width.
TEST(ExpertRules, OnlyDenseLayersNeedAWidthOfTheirOwn) {
  const auto problems = [](const std::string& freq, const std::string& family) {
    return described(violations(
        good(with_experts({"model.hidden_size=16", "model.num_attention_heads=4", "model.gated_linear_unit=true",
                           "model.ffn_hidden_size=0", "model.moe_ffn_hidden_size=24", "model.moe_layer_freq=" + freq,
                           "model.family=" + family})),
        kWorld));
  };
  EXPECT_EQ(problems("1", "gpt").find("model.ffn_hidden_size"), std::string::npos) << problems("1", "gpt");
  EXPECT_NE(problems("2", "gpt").find("model.ffn_hidden_size"), std::string::npos) << problems("2", "gpt");
  EXPECT_NE(problems("1", "codegeex").find("model.ffn_hidden_size"), std::string::npos);
}

TEST(ExpertRules, AWrongWordIsAnsweredWithTheNearest) {
  const std::string all =
      described(violations(good(with_experts({"model.moe_router_load_balancing_type=seq_aux_los"})), kWorld));
  EXPECT_NE(all.find("did you mean seq_aux_loss?"), std::string::npos) << all;
}

TEST(ExpertRules, EvaluationNeedsNoSequenceParallelism) {
  const Config config = good(with_experts({"parallel.sequence_parallel=false"}));
  EXPECT_EQ(described(violations(config, kWorld, Use::evaluation)), "nothing");
  EXPECT_EQ(violations(config, kWorld, Use::training).size(), 1U);
}

TEST(ExpertRules, AcceptWhatTheyAllow) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"model.moe_layer_freq=([0]*1+[1]*3)*2"},
           {"model.moe_router_topk=1", "model.moe_router_pre_softmax=true", "model.moe_apply_probs_on_input=true"},
           {"model.moe_router_topk=1", "model.moe_router_load_balancing_type=sinkhorn"},
           {"model.moe_router_topk=1", "model.moe_router_score_function=sigmoid",
            "model.moe_router_enable_expert_bias=true"},
           {"model.moe_router_enable_expert_bias=true", "model.moe_router_weight_in_fp32=true"},
           {"model.moe_router_num_groups=4", "model.moe_router_group_topk=2"},
           {"model.moe_router_load_balancing_type=aux_loss,global_aux_loss", "model.moe_aux_loss_coeff=0.1,0",
            "model.moe_expert_capacity_factor=1.5", "model.moe_pad_expert_input_to_capacity=true"},
           {"model.moe_router_load_balancing_type=none", "model.moe_expert_capacity_factor=-1"},
           {"model.moe_shared_expert_intermediate_size=32", "model.moe_shared_expert_gate=true",
            "model.moe_shared_expert_overlap=true"},
           {"model.moe_token_dispatcher_type=hierarchical", "parallel.expert_ranks_per_node=1"},
           {"model.moe_token_dispatcher_type=static_buffer", "model.moe_expert_rank_capacity_factor=1",
            "model.moe_rank_pair_capacity_factor=1", "model.moe_overflow_policy=stop"},
           {"model.moe_token_dispatcher_type=static_buffer", "model.moe_expert_rank_capacity_factor=2",
            "model.moe_expert_capacity_factor=1", "model.moe_shared_expert_intermediate_size=32",
            "model.moe_shared_expert_overlap=true"},
           {"model.moe_token_dispatcher_type=static_buffer", "model.moe_expert_rank_capacity_factor=2",
            "model.moe_paged_stash=true", "memory.recompute_granularity=full", "memory.recompute_method=block",
            "memory.recompute_num_layers=3"},
           {"parallel.expert_tensor_parallel_size=0"},
           {"parallel.expert_tensor_parallel_size=4", "parallel.expert_model_parallel_size=1"},
           {"parallel.expert_model_parallel_size=1", "parallel.tensor_model_parallel_size=1",
            "model.moe_token_dispatcher_type=local", "parallel.sequence_parallel=false"},
           {"memory.recompute_granularity=selective", "memory.recompute_modules=moe,layernorm"},
           {"model.moe_router_force_skew=1.2", "model.moe_router_force_skew_period=10"}}) {
    const Config config = good(with_experts(overrides));
    EXPECT_EQ(described(violations(config, kWorld)), "nothing") << overrides[0];
    const Config once = resolved(config, kWorld);
    EXPECT_EQ(once.model.moe_ffn_hidden_size, 256);
    EXPECT_EQ(described(violations(once, kWorld)), "nothing") << overrides[0];
    EXPECT_EQ(differences(resolved(once, kWorld), once), std::vector<std::string>{});
  }
}

// Hugging Face's configurations of Mixtral 8x7B and Qwen3-MoE. Both compute probabilities from only the chosen
// experts' logits (norm_topk_prob), which is the softmax after the choice.
TEST(ExpertPresets, AreThoseOfTheFamilies) {
  const Model mixtral = load("", {"model.family=mixtral"}).model, qwen = load("", {"model.family=qwen3_moe"}).model;
  for (const Model& m : {mixtral, qwen}) {
    EXPECT_EQ(m.normalization, Normalization::RMSNorm);
    EXPECT_EQ(m.position_embedding_type, PositionEmbedding::rope);
    EXPECT_EQ(m.rotary_base, 1e6);
    EXPECT_EQ(m.activation, Activation::silu);
    EXPECT_TRUE(m.gated_linear_unit);
    EXPECT_FALSE(m.add_bias_linear || m.add_qkv_bias || m.moe_router_pre_softmax || m.tied());
    EXPECT_EQ(m.moe_router_score_function, ScoreFunction::softmax);
    EXPECT_EQ(m.moe_layer_freq, "1");
  }
  EXPECT_EQ(mixtral.num_moe_experts, 8);
  EXPECT_EQ(mixtral.moe_router_topk, 2);
  EXPECT_EQ(mixtral.layernorm_epsilon, 1e-5);
  EXPECT_FALSE(mixtral.qk_layernorm);
  EXPECT_EQ(qwen.num_moe_experts, 128);
  EXPECT_EQ(qwen.moe_router_topk, 8);
  EXPECT_EQ(qwen.layernorm_epsilon, 1e-6);
  EXPECT_TRUE(qwen.qk_layernorm);
}

TEST(ExpertRules, ResolvedLeavesADenseModelDense) {
  EXPECT_EQ(resolved(good(), kWorld).model.moe_ffn_hidden_size, 0);
}

}  // namespace
}  // namespace metroplex::config::experts_test

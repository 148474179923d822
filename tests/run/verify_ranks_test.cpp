// Comparisons of `metroplex verify`, and its notes on parameters that it does not compare.
#include "verify/verify.h"

#include <algorithm>
#include <cmath>

#include "run/support.h"

namespace metroplex::test::verify_ranks_test {
namespace {

using Lines = std::vector<std::string>;

verify::LayoutRun run(const config::Config& base, const TestLayout& layout) {
  const config::Config config = cut(verify::verification_config(base, 2), layout);
  verify::LayoutRun result;
  run_sharded(config, layout, [&](const comm::World& world) {
    verify::LayoutRun mine = verify::run_layout(config, world, kVocab, 2);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

TEST(Verify, KeepsEachOfTheDocumentMasks) {
  const std::vector<double> plain = run(small_gpt(), {}).losses;
  for (bool config::Data::*mask :
       {&config::Data::reset_position_ids, &config::Data::reset_attention_mask, &config::Data::eod_mask_loss}) {
    config::Config config = small_gpt();
    config.data.*mask = true;
    const auto one = run(config, {});
    EXPECT_GT(std::abs(one.losses[0] - plain[0]), 1e-6);
    const auto difference = verify::compare_runs(run(config, {2, 2, 1, 2, true}), one);
    EXPECT_LE(difference.loss, verify::kLossTolerance);
    EXPECT_LE(difference.parameter, verify::kParameterTolerance) << difference.parameter_name;
  }
  config::Config attention = small_gpt(), positions = small_gpt();
  attention.data.reset_position_ids = attention.data.reset_attention_mask = positions.data.reset_position_ids = true;
  EXPECT_GT(std::abs(run(attention, {}).losses[0] - run(positions, {}).losses[0]), 1e-9) << "attention sees it all";
}

TEST(Verify, ComparesTheBatchThatRunsWhereTheLayoutMakesItSmaller) {
  config::Config asked = small_gpt();
  asked.train.global_batch_size = 7;
  asked.train.micro_batch_size = 1;
  EXPECT_EQ(verify::with_running_batch(asked, 3).train.global_batch_size, 7) << "it must divide";
  asked.train.decrease_batch_size_if_needed = true;
  EXPECT_EQ(verify::with_running_batch(asked, 3).train.global_batch_size, 6);
  EXPECT_EQ(verify::with_running_batch(asked, 1).train.global_batch_size, 7);
  config::Config unsaid = asked;
  unsaid.train.global_batch_size = 0;
  EXPECT_EQ(verify::with_running_batch(unsaid, 3).train.global_batch_size, 0);
  EXPECT_THROW(verify::with_running_batch(asked, 8), base::Error) << "too small";
  const Lines lines = verify::dropped_settings(asked, verify::with_running_batch(asked, 3));
  EXPECT_EQ(lines, Lines{"train.global_batch_size: 7 (6 in the comparison)"});
}

TEST(Verify, OneRankCanRunWhatWasSentOverNodes) {
  config::Config asked = config::parse(
      "model: {family: mixtral, num_layers: 2, hidden_size: 16, num_attention_heads: 4, ffn_hidden_size: 16,"
      " vocab_size: 50, num_moe_experts: 4, moe_token_dispatcher_type: hierarchical}\n"
      "parallel: {expert_model_parallel_size: 4, expert_ranks_per_node: 2}\n"
      "train: {seq_length: 8, micro_batch_size: 1, global_batch_size: 8, train_iters: 2}\n"
      "optim: {lr: 1.0e-2}\ndata: {mock_data: true}\n");
  config::check(asked, 4);
  EXPECT_NO_THROW(config::check(verify::single_rank_config(asked), 1));
}

TEST(Verify, OneRankHasNoClones) {
  config::Config asked = config::parse(
      "model: {family: mixtral, num_layers: 2, hidden_size: 16, num_attention_heads: 4, ffn_hidden_size: 16,"
      " vocab_size: 50, num_moe_experts: 4, moe_enable_echo: true, moe_num_echo_experts: 4, moe_echo_planner: greedy,"
      " moe_echo_reclaim: 0.1, moe_echo_recompute_expert_dispatch: true,"
      " moe_echo_expert_dispatch_overlap: false, moe_echo_enable_random_offloading: true,"
      " moe_echo_dump_dir: plans}\n"
      "parallel: {expert_model_parallel_size: 4}\n"
      "train: {seq_length: 8, micro_batch_size: 1, global_batch_size: 8, train_iters: 2}\n"
      "optim: {lr: 1.0e-2}\ndata: {mock_data: true}\n");
  config::check(asked, 4);
  EXPECT_NO_THROW(config::check(verify::single_rank_config(asked), 1));
  asked.model.moe_echo_planner = config::EchoPlanner::capfill;
  asked.model.moe_echo_reclaim = 0;
  asked.model.moe_echo_eps = 0.1;
  config::check(asked, 4);
  EXPECT_NO_THROW(config::check(verify::single_rank_config(asked), 1));
}

TEST(Verify, TellsWhatItLeavesOutAndNothingElse) {
  config::Config asked = small_gpt();
  asked.optim.lr_warmup_iters = 0;
  asked.optim.lr_decay_style = "constant";
  asked.optim.adam_eps = 1e-3;
  asked.data.reset_attention_mask = true;
  asked.checkpoint.save = "somewhere";
  asked.train.train_epochs = 2;
  EXPECT_EQ(verify::verification_config(asked, 3).train.train_epochs, 0);
  EXPECT_EQ(verify::dropped_settings(asked, verify::verification_config(asked, 3)), Lines{});
  asked.optim.adam_eps = 1e-8;
  asked.optim.lr_decay_style = "cosine";
  asked.optim.lr_warmup_iters = 5;
  asked.train.step_batch_size_schedule = "0:8 100:16";
  asked.train.global_batch_size = 0;
  asked.precision.params_dtype = "bf16";
  asked.model.sharded_initialization = true;
  const config::Config compared = verify::verification_config(asked, 3);
  EXPECT_EQ(compared.train.global_batch_size, 16);
  const Lines lines = verify::dropped_settings(asked, compared);
  for (const char* key : {"optim.adam_eps: ", "optim.lr_decay_style: cosine (constant in",
                          "optim.lr_warmup_iters: 5 (0", "train.step_batch_size_schedule: 0:8 100:16 (none",
                          "precision.params_dtype: bf16 (fp64", "model.sharded_initialization: true (false"})
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.starts_with(key);
    })) << key;
}

TEST(Verify, NamesWhatDependsOnTheLayoutByWhatItMeans) {
  config::Config config = small_gpt();
  config.model.num_moe_experts = 4;
  config.model.moe_router_load_balancing_type = "aux_loss,global_aux_loss";
  config.model.moe_aux_loss_coeff = "0.1,0.1";
  config.model.moe_expert_capacity_factor = 1;
  const auto found = [&](int64_t tp, int64_t pp, int64_t world) {
    config.parallel.tensor_model_parallel_size = tp;
    config.parallel.pipeline_model_parallel_size = pp;
    std::string keys;
    for (const std::string& line : verify::layout_dependent(config, world))
      keys += line.substr(0, line.find(' ')) + " ";
    return keys;
  };
  EXPECT_EQ(found(1, 4, 4), "");
  EXPECT_EQ(found(1, 1, 2), "model.moe_router_load_balancing_type ");
  EXPECT_EQ(found(2, 1, 2), "model.moe_expert_capacity_factor ");
  EXPECT_EQ(found(2, 1, 4), "model.moe_router_load_balancing_type model.moe_expert_capacity_factor ");
  config.model.moe_aux_loss_coeff = "0.1,0";
  EXPECT_EQ(found(1, 1, 2), "");
  config.model.moe_token_dispatcher_type = config::TokenDispatcher::static_buffer;
  EXPECT_EQ(found(1, 1, 2), "");
  config.model.moe_overflow_policy = config::OverflowPolicy::drop;
  EXPECT_EQ(found(1, 1, 2), "model.moe_overflow_policy ");
  config.model.moe_overflow_policy = config::OverflowPolicy::redo;
  config.parallel.context_parallel_size = 2;
  EXPECT_EQ(found(1, 1, 2), "model.moe_expert_capacity_factor ");
  config.model.moe_expert_capacity_factor = 0;
  EXPECT_EQ(found(1, 1, 2), "");
}

TEST(Verify, NamesRoundingThatDependsOnTheLayout) {
  config::Config config = small_gpt();
  config.precision.fp8_format = config::Fp8Format::hybrid;
  config.train.seq_length = 64, config.train.micro_batch_size = 1;
  const auto found = [&](const char* recipe, int64_t tp, int64_t cp, int64_t world) {
    config.precision.fp8_recipe = config::Choice<config::Fp8Recipe>(recipe);
    config.parallel.tensor_model_parallel_size = config.parallel.expert_tensor_parallel_size = tp;
    config.parallel.context_parallel_size = cp;
    std::string rules;
    for (const std::string& line : verify::layout_dependent(config, world))
      rules += line.substr(line.find(": ") + 2, 6) + "|";
    return rules;
  };
  EXPECT_EQ(found("delayed", 2, 1, 2), "");
  EXPECT_EQ(found("delayed", 2, 2, 4), "the si|");
  EXPECT_EQ(found("delayed", 2, 1, 4), "the si|");
  EXPECT_EQ(found("mxfp8", 2, 1, 4), "");
  EXPECT_EQ(found("mxfp8", 2, 1, 6), "the si|");
  EXPECT_EQ(found("tensorwise", 2, 1, 6), "");
  EXPECT_EQ(found("mxfp8", 1, 2, 2), "blocks|");  // of 16 rows
  EXPECT_EQ(found("tensorwise", 1, 2, 2), "");
  config.train.calculate_per_token_loss = true, config.train.micro_batch_size = 2;
  EXPECT_EQ(found("mxfp8", 1, 2, 6), "");
  EXPECT_EQ(found("delayed", 1, 1, 2), "");
  config.model.num_moe_experts = 4, config.model.moe_combine_bwd_dtype = config::RowDtype::mxfp8;
  config.train.calculate_per_token_loss = false;
  EXPECT_EQ(found("tensorwise", 1, 1, 3), "the si|");
  EXPECT_EQ(found("tensorwise", 1, 1, 4), "");
  config.train.calculate_per_token_loss = true;
  EXPECT_EQ(found("tensorwise", 2, 1, 2), "");
  EXPECT_EQ(found("mxfp8", 1, 2, 2), "the ro|");
  config.parallel.expert_model_parallel_size = 2;
  EXPECT_EQ(found("tensorwise", 1, 1, 2), "the ro|");
  EXPECT_EQ(found("delayed", 1, 1, 2), "");
}

TEST(Verify, NamesForcedChoicesThatRanksMakeForThemselves) {
  config::Config config = small_gpt();
  config.model.num_moe_experts = 4;
  const auto found = [&](int64_t tp, int64_t cp, int64_t pp, int64_t world) {
    config.parallel.tensor_model_parallel_size = tp;
    config.parallel.context_parallel_size = cp;
    config.parallel.pipeline_model_parallel_size = pp;
    std::string keys;
    for (const std::string& line : verify::layout_dependent(config, world))
      keys += line.substr(0, line.find(' ')) + " ";
    return keys;
  };
  config.model.moe_router_force_even = true;
  EXPECT_EQ(found(1, 1, 2, 4), "");
  EXPECT_EQ(found(2, 1, 1, 2), "model.moe_router_force_even ");
  EXPECT_EQ(found(1, 2, 1, 2), "model.moe_router_force_even ");
  config.model.moe_router_force_even = false;
  config.model.moe_router_force_trace = "trace.jsonl";
  EXPECT_EQ(found(1, 1, 4, 4), "");
  EXPECT_EQ(found(1, 1, 1, 2), "model.moe_router_force_trace ");
  EXPECT_EQ(found(1, 2, 1, 2), "model.moe_router_force_trace ");
}

// layout_dependent against two layouts: if it names nothing, they agree to the last digit.
TEST(Verify, NamesTheGradientOfNothingWhoseSignAnOptimizerTakes) {
  struct Case {
    const char* what;
    bool bias, qkv_bias, qk_norm;
    const char *positions, *normalization;
    double rotary_percent;
    const char* named;
    const char* family = "gpt";
  };
  for (const Case& it : {
           Case{"biases", true, false, false, "learned_absolute", "LayerNorm", 1, "the keys' bias (model.add_bias"},
           Case{"of q, k, v", false, true, false, "learned_absolute", "LayerNorm", 1,
                "the keys' bias (model.add_qkv"},
           Case{"half turned", true, false, false, "rope", "LayerNorm", 0.5, "the keys' bias"},
           Case{"turned", true, false, false, "rope", "LayerNorm", 1, ""},
           Case{"no bias", false, false, false, "learned_absolute", "LayerNorm", 1, ""},
           Case{"norm with bias", true, false, true, "learned_absolute", "LayerNorm", 1, "k_layernorm.bias"},
           Case{"turned norm", true, false, true, "rope", "LayerNorm", 1, ""},
           Case{"norm without bias", true, false, true, "learned_absolute", "RMSNorm", 1, ""},
           Case{"top query", false, false, false, "rope", "LayerNorm", 1, "the first row of top_query_embeddings",
                "codegeex"},
       }) {
    config::Config config = small_gpt();
    config.optim.optimizer = "lion";
    config.model.family = it.family;
    config.model.add_bias_linear = it.bias;
    config.model.add_qkv_bias = it.qkv_bias;
    config.model.qk_layernorm = it.qk_norm;
    config.model.position_embedding_type = it.positions;
    config.model.normalization = it.normalization;
    config.model.rotary_percent = it.rotary_percent;
    const auto difference = verify::compare_runs(run(config, {2}), run(config, {}));
    config.parallel.tensor_model_parallel_size = 2;
    const Lines lines = verify::layout_dependent(config, 2);
    EXPECT_EQ(difference.parameter > verify::kParameterTolerance, *it.named != 0)
        << it.what << ": " << difference.parameter << " at " << difference.parameter_name;
    ASSERT_EQ(lines.size(), *it.named != 0 ? 1U : 0U) << it.what;
    if (*it.named != 0) {
      EXPECT_TRUE(lines[0].starts_with("optim.optimizer = lion: ")) << lines[0];
      EXPECT_NE(lines[0].find(std::string("that of ") + it.named), std::string::npos) << lines[0];
    }
  }
}

TEST(Verify, ComparesSignsWhereEveryBitStaysAndOtherOptimizersEverywhere) {
  config::Config config = small_gpt();
  const auto named = [&](const char* optimizer, int64_t pp, int64_t world) {
    config.optim.optimizer = optimizer;
    config.parallel.pipeline_model_parallel_size = pp;
    return verify::layout_dependent(config, world).size();
  };
  EXPECT_EQ(named("lion", 4, 4), 0U);
  EXPECT_EQ(named("lion", 2, 4), 1U);
  EXPECT_EQ(named("lion", 1, 3), 1U);
  for (const char* other : {"adam", "sgd", "muon"}) EXPECT_EQ(named(other, 1, 4), 0U) << other;
  config.optim.optimizer = "lion";
  EXPECT_EQ(verify::compare_runs(run(config, {1, 4}), run(config, {})).parameter, 0.0);
}

}  // namespace
}  // namespace metroplex::test::verify_ranks_test

// Forwards and backwards in turns (parallel.overlap_moe_expert_parallel_comm) equal one rank: three optimizer steps
// in float64 with dropout. Losses to 1e-12 relative, parameters to 1e-10 (reasons in verify/verify.h).
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "config/load.h"
#include "run/run_layouts.h"
#include "support/everyday.h"

namespace metroplex::run::expert_overlap_ranks_test {
namespace {

struct OverlapCase {
  const char* settings;  // further keys, separated by ";"
  int64_t ranks = 2, microbatches = 4;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ';');) parts.push_back(part);
  return parts;
}

config::Config make_config(const std::string& yaml, const OverlapCase& test_case) {
  std::vector<std::string> settings = split(test_case.settings);
  settings.emplace_back("parallel.overlap_moe_expert_parallel_comm=true");
  settings.emplace_back("parallel.ddp_bucket_size=2000");
  config::Config config = config::parse(yaml, settings);
  const int64_t replicas = test_case.ranks / (config.parallel.tp() * config.parallel.pp());
  config.train.global_batch_size = test_case.microbatches * replicas * config.train.micro_batch_size;
  return for_ranks(config, test_case.ranks);
}

const std::string kModel =
    "model: {family: gpt, num_layers: 4, hidden_size: 16, num_attention_heads: 4, ffn_hidden_size: 16,"
    " vocab_size: 50, make_vocab_size_divisible_by: 8, add_bias_linear: false, normalization: RMSNorm,"
    " num_moe_experts: 4, moe_layer_freq: \"[1,0,1,1]\", moe_router_topk: 2, moe_aux_loss_coeff: \"0.02\","
    " moe_z_loss_coeff: 0.001, moe_shared_expert_intermediate_size: 8, hidden_dropout: 0.1, attention_dropout: 0.1,"
    " init_method_std: 0.2}\n"
    "train: {seq_length: 8, micro_batch_size: 1}\n"
    "optim: {lr: 1.0e-3, weight_decay: 0.1}\n";

void check(const std::vector<OverlapCase>& cases) {
  std::map<int64_t, verify::LayoutRun> references;
  for (const OverlapCase& test_case : cases) {
    SCOPED_TRACE(base::concat(test_case.settings, ", microbatches ", test_case.microbatches));
    const config::Config config = make_config(kModel, test_case);
    expect_equals_single_rank(config, test_case.ranks, references);
  }
}

TEST(ExpertOverlap, EqualsOneRankWithEveryDispatcher) {
  check({{"parallel.expert_model_parallel_size=2;model.moe_token_dispatcher_type=alltoall"},
         {"parallel.expert_model_parallel_size=2;model.moe_token_dispatcher_type=allgather"},
         {"parallel.expert_model_parallel_size=4;parallel.expert_ranks_per_node=2;"
          "model.moe_token_dispatcher_type=hierarchical",
          4},
         {"parallel.expert_model_parallel_size=2;model.moe_token_dispatcher_type=static_buffer;"
          "model.moe_expert_rank_capacity_factor=2"},
         {"parallel.expert_model_parallel_size=2;model.moe_shared_expert_overlap=true"},
         {"parallel.expert_model_parallel_size=2;parallel.expert_tensor_parallel_size=2;"
          "parallel.tensor_model_parallel_size=2;parallel.sequence_parallel=true",
          4, 3}});
}

TEST(ExpertOverlap, EqualsOneRankWithEverySchedule) {
  check({{"parallel.expert_model_parallel_size=2", 2, 1},
         {"parallel.expert_model_parallel_size=2", 2, 3},
         {"parallel.expert_model_parallel_size=2;parallel.pipeline_model_parallel_size=2", 4, 5},
         {"parallel.expert_model_parallel_size=2;parallel.pipeline_model_parallel_size=4", 8, 4},
         {"parallel.expert_model_parallel_size=2;parallel.pipeline_model_parallel_size=2;"
          "parallel.virtual_pipeline_model_parallel_size=2",
          4, 4},
         {"parallel.expert_model_parallel_size=2;parallel.pipeline_model_parallel_size=2;"
          "parallel.virtual_pipeline_model_parallel_size=2;parallel.pipeline_schedule=dualpipe_v",
          4, 6},
         {"parallel.expert_model_parallel_size=2;parallel.delay_wgrad_compute=true", 2, 4},
         {"parallel.expert_model_parallel_size=2;parallel.pipeline_model_parallel_size=2;"
          "parallel.delay_wgrad_compute=true;parallel.defer_embedding_wgrad_compute=true;"
          "parallel.data_parallel_sharding_strategy=optim_grads",
          4, 4},
         {"parallel.expert_model_parallel_size=2;parallel.data_parallel_sharding_strategy=optim", 2, 4}});
}

TEST(ExpertOverlap, EqualsOneRankWithRecomputationAndReplicas) {
  check({{"parallel.expert_model_parallel_size=2;memory.recompute_granularity=full;memory.recompute_method=uniform;"
          "memory.recompute_num_layers=1"},
         {"parallel.expert_model_parallel_size=2;memory.recompute_granularity=selective;"
          "memory.recompute_modules=[core_attn,moe]"}});
  check({{"parallel.expert_model_parallel_size=2;model.moe_enable_echo=true;model.moe_num_echo_experts=2;"
          "model.moe_echo_planner=exact;model.moe_router_force_skew=1"},
         {"parallel.expert_model_parallel_size=2;model.moe_enable_echo=true;model.moe_num_echo_experts=2;"
          "model.moe_echo_planner=exact;model.moe_router_force_skew=1;model.moe_echo_expert_dispatch_overlap=true;"
          "model.moe_echo_recompute_expert_dispatch=true"}});
}

}  // namespace
}  // namespace metroplex::run::expert_overlap_ranks_test

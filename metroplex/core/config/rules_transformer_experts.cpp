// Rules of Megatron's TransformerConfig for experts.
#include "config/rules_transformer.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::config {

using base::concat;

namespace {

class ExpertChecker {
 public:
  explicit ExpertChecker(const TransformerSettings& settings) : s_(settings), e_(settings.experts) {}

  std::vector<Violation> run() {
    sizes();
    router();
    if (e_.group_topk) groups();
    balancing();
    capacity();
    shared();
    recompute();
    return std::move(list_);
  }

 private:
  void sizes() {
    if (e_.num_moe_experts && *e_.num_moe_experts <= 0) {
      refuse(list_, "model.num_moe_experts", *e_.num_moe_experts, "must be at least 1 in a model with experts",
             "choose 1 or more");
    }
    if (s_.ep > 1 && !e_.num_moe_experts) {
      refuse(list_, "parallel.expert_model_parallel_size", s_.ep,
             "distributes experts, but the model has none (model.num_moe_experts = 0)",
             "set it to 1 or give the model experts");
    }
    if (e_.moe_ffn_hidden_size && !e_.num_moe_experts && !e_.some_layers_dense) {
      refuse(list_, "model.moe_ffn_hidden_size", *e_.moe_ffn_hidden_size,
             "is the width of experts, but the model has none (model.num_moe_experts = 0)",
             "leave it 0 or give the model experts");
    }
    const int64_t etp = s_.etp.value_or(s_.tp);
    if (e_.num_moe_experts && s_.add_bias_linear && etp != 1) {
      refuse(list_, "parallel.expert_tensor_parallel_size", etp,
             "must be 1 where experts have biases (model.add_bias_linear): each of its ranks would add them",
             "set it to 1, or add_bias_linear to false");
    }
  }

  void router() {
    if (e_.topk == 1 && e_.score_function == "softmax" && !e_.pre_softmax &&
        e_.balancing != std::vector<std::string>{"sinkhorn"}) {
      refuse(list_, "model.moe_router_topk", e_.topk,
             "needs model.moe_router_pre_softmax: the softmax over one chosen expert is 1 and the router learns "
             "nothing",
             "turn moe_router_pre_softmax on");
    }
  }

  void groups() {
    const int64_t groups = e_.num_groups.value_or(0), experts = e_.num_moe_experts.value_or(0);
    if (groups == 0) {
      return refuse(list_, "model.moe_router_num_groups", groups,
                    concat("must be given with model.moe_router_group_topk = ", *e_.group_topk),
                    "set the number of groups that the experts are divided into");
    }
    if (experts == 0 || experts % groups != 0) {
      refuse(list_, "model.moe_router_num_groups", groups, concat("must divide model.num_moe_experts = ", experts),
             "choose a divisor of the experts");
    }
    if (*e_.group_topk > groups) {
      refuse(list_, "model.moe_router_group_topk", *e_.group_topk,
             concat("must not exceed model.moe_router_num_groups = ", groups), "lower it");
    }
  }

  void balancing() {
    if (e_.num_coefficients && *e_.num_coefficients != e_.balancing.size()) {
      refuse(list_, "model.moe_aux_loss_coeff", concat(*e_.num_coefficients, " coefficients"),
             concat("must be one for each of the ", e_.balancing.size(),
                    " words of model.moe_router_load_balancing_type"),
             "write as many numbers as words, with commas");
    }
  }

  void capacity() {
    static const std::vector<std::string> kDropping{"aux_loss", "seq_aux_loss", "global_aux_loss", "none"};
    for (const std::string& type : e_.balancing) {
      if (!e_.capacity_factor || among(type, kDropping)) continue;
      refuse(list_, "model.moe_router_load_balancing_type", type,
             "excludes model.moe_expert_capacity_factor, which goes with aux_loss, seq_aux_loss, global_aux_loss and "
             "none",
             "choose one of these, or set the factor to 0");
    }
    if (e_.pad_to_capacity && e_.capacity_factor.value_or(-1) < 0) {
      refuse(list_, "model.moe_pad_expert_input_to_capacity", "true",
             "needs a capacity to pad to: model.moe_expert_capacity_factor", "give the factor, or turn it off");
    }
  }

  void shared() {
    if (!e_.shared_size) return;
    if (*e_.shared_size <= 0) {
      refuse(list_, "model.moe_shared_expert_intermediate_size", *e_.shared_size,
             "must be at least 1: shared experts times the width of one", "choose 1 or more");
    }
    // auto depends only on the ranks, and one rank has nothing to overlap with.
    static const std::vector<std::string> kSending{"alltoall", "flex", "hierarchical", "static_buffer", "auto"};
    if (e_.shared_overlap && !among(e_.dispatcher, kSending)) {
      refuse(list_, "model.moe_shared_expert_overlap", "true",
             "needs model.moe_token_dispatcher_type = alltoall, hierarchical or static_buffer, not " + e_.dispatcher,
             "choose one of them or turn the overlap off");
    }
  }

  void recompute() {
    if (s_.recompute_granularity != "selective") return;
    const std::vector<std::string> modules = s_.recompute_modules.value_or(std::vector<std::string>{});
    if (among("moe_act", modules) && !e_.grouped_gemm) {
      refuse(list_, "memory.recompute_modules", "moe_act",
             "needs experts computed in one call: model.num_moe_experts and model.moe_grouped_gemm",
             "turn moe_grouped_gemm on, or name activation for dense layers");
    }
    if (among("shared_experts", modules) && e_.shared_size && e_.shared_overlap) {
      refuse(list_, "memory.recompute_modules", "shared_experts", "excludes model.moe_shared_expert_overlap",
             "leave one of the two out");
    }
  }

  const TransformerSettings& s_;
  const ExpertSettings& e_;
  std::vector<Violation> list_;
};

}  // namespace

std::vector<Violation> expert_violations(const TransformerSettings& settings) {
  return ExpertChecker(settings).run();
}

}  // namespace metroplex::config

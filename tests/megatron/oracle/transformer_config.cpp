#include "megatron/oracle/transformer_config.h"

#include <algorithm>

#include "base/error.h"
#include "config/parallel.h"

namespace metroplex::megatron {

using config::among;

namespace {

// The rules about options that only Megatron has.
class Checker {
 public:
  explicit Checker(const TransformerConfig& settings) : s_(settings), o_(settings.expert_options) {}

  std::vector<config::Violation> run() {
    messages();
    exchanges();
    fusions();
    precision();
    offload();
    dispatcher();
    grouped_products();
    paged_stash();
    overlap();
    return std::move(list_);
  }

 private:
  void messages() {
    if (s_.pp > 1 && !s_.has_pipeline_dtype) {
      refuse(list_, "parallel.pipeline_model_parallel_size", s_.pp, "needs the number format that stages exchange",
             "name one");
    }
    if (s_.defer_embedding_wgrad_compute &&
        (s_.pp == 1 || !s_.gradient_accumulation_fusion || s_.wgrad_deferral_limit < 0)) {
      refuse(list_, "defer_embedding_wgrad_compute", "true",
             "needs a pipeline, fused gradient accumulation and a deferral limit of at least 0", "turn it off");
    }
    if (s_.overlap_p2p_comm_warmup_flush && (!s_.overlap_p2p_comm || s_.batch_p2p_comm)) {
      refuse(list_, "overlap_p2p_comm_warmup_flush", "true", "needs parallel.overlap_p2p_comm and unbatched messages",
             "turn it off");
    }
  }

  void exchanges() {
    if (s_.cp_comm_types && static_cast<int64_t>(s_.cp_comm_types->size()) != s_.num_layers) {
      refuse(list_, "parallel.cp_comm_type", s_.cp_comm_types->size(),
             base::concat("is a list of another length than model.num_layers = ", s_.num_layers),
             "name one for each layer");
    }
  }

  void fusions() {
    if (!s_.bias_activation_fusion) return;
    const bool fusible = s_.activation == "gelu" || s_.activation == "silu" || s_.activation == "quick_gelu";
    if (!fusible || (s_.activation == "gelu" && !s_.gated_linear_unit && !s_.add_bias_linear) ||
        (s_.activation == "quick_gelu" && !s_.gated_linear_unit)) {
      refuse(list_, "model.activation", s_.activation, "cannot be fused with the bias", "turn the fusion off");
    }
  }

  void precision() {
    if (s_.fp16 && s_.bf16)
      refuse(list_, "precision.params_dtype", "fp16 and bf16", "must be one format", "choose one");
  }

  // Megatron's two ways of moving activations to the host; memory.offload_activations is neither.
  void offload() {
    if (s_.cpu_offloading && (s_.cpu_offloading_num_layers < 0 || s_.cpu_offloading_num_layers >= s_.num_layers)) {
      refuse(list_, "cpu_offloading_num_layers", s_.cpu_offloading_num_layers,
             base::concat("must be less than model.num_layers = ", s_.num_layers), "keep the last layer's");
    }
    if (s_.cpu_offloading && (s_.pp > 1 || s_.recompute_granularity)) {
      refuse(list_, "cpu_offloading", "true", "works without a pipeline and without recompute only", "turn it off");
    }
    if (!s_.fine_grained_activation_offloading) return;
    static const std::vector<std::string> kModules = {"attn_norm", "qkv_linear",      "core_attn",
                                                      "attn_proj", "mlp_norm",        "expert_fc1",
                                                      "moe_act",   "fused_group_mlp", "gdp_qkv"};
    if (s_.cpu_offloading)
      refuse(list_, "fine_grained_activation_offloading", "true", "excludes cpu_offloading", "keep one");
    if (s_.offload_modules.empty())
      refuse(list_, "offload_modules", "", "must be given with fine_grained_activation_offloading",
             "name some modules");
    for (const std::string& module : s_.offload_modules) {
      if (!among(module, kModules))
        refuse(list_, "offload_modules", module, "is no module whose input is kept", "name another");
    }
    if (among("attn_proj", s_.offload_modules) && !among("core_attn", s_.offload_modules)) {
      refuse(list_, "offload_modules", "attn_proj", "needs core_attn too, whose backward reads the same tensor",
             "add core_attn");
    }
    if (s_.recompute_granularity == "selective" && among("moe", recomputed()) && offloads_experts()) {
      refuse(list_, "offload_modules", "", "names a part of moe, which is recomputed as a whole",
             "keep one of the two");
    }
    if (!among("fused_group_mlp", s_.offload_modules)) return;
    if (!o_.op_fuser || among("expert_fc1", s_.offload_modules) || among("moe_act", s_.offload_modules)) {
      refuse(list_, "offload_modules", "fused_group_mlp",
             "needs use_transformer_engine_op_fuser, and excludes expert_fc1 and moe_act", "leave it out");
    }
  }

  bool flex_with(const char* backend) const { return s_.experts.dispatcher == "flex" && o_.flex_backend == backend; }
  bool grouped_tensor() const { return o_.use_grouped_tensor || (o_.op_fuser && s_.experts.grouped_gemm); }
  bool offloads_experts() const {
    return among("expert_fc1", s_.offload_modules) || among("moe_act", s_.offload_modules) ||
           among("fused_group_mlp", s_.offload_modules);
  }
  std::vector<std::string> recomputed() const {
    std::vector<std::string> modules = s_.recompute_modules.value_or(std::vector<std::string>{"core_attn"});
    if (o_.layer_recompute) modules.emplace_back("moe");
    return modules;
  }

  void dispatcher() {
    const std::string& type = s_.experts.dispatcher;
    if (o_.enable_deepep && (type != "flex" || o_.flex_backend == "hybridep"))
      refuse(list_, "moe_enable_deepep", "true", "needs the flex dispatcher, without another backend", "turn it off");
    if (s_.experts.pad_to_capacity && type == "flex" && (o_.enable_deepep || o_.flex_backend == "deepep")) {
      refuse(list_, "model.moe_pad_expert_input_to_capacity", "true", "excludes the flex dispatcher with deepep",
             "turn it off");
    }
    if (o_.flex_backend == "ncclep" && !o_.enable_deepep && (type != "flex" || (grouped_tensor() && !o_.op_fuser))) {
      refuse(list_, "moe_flex_dispatcher_backend", "ncclep",
             "needs the flex dispatcher, and the operation fuser for grouped tensors", "choose another backend");
    }
    if ((o_.dispatch_fwd_dtype != "bf16" || o_.combine_bwd_dtype != "bf16") &&
        (!flex_with("ncclep") || !o_.op_fuser || !s_.experts.grouped_gemm)) {
      refuse(list_, "moe_dispatch_fwd_dtype", o_.dispatch_fwd_dtype,
             "needs the flex dispatcher with ncclep, the operation fuser and moe_grouped_gemm", "use bf16");
    }
    if (!o_.flex_num_sms && o_.deepep_num_sms && o_.hybridep_num_sms && o_.deepep_num_sms != o_.hybridep_num_sms) {
      refuse(list_, "moe_deepep_num_sms", *o_.deepep_num_sms, "must agree with moe_hybridep_num_sms",
             "use moe_flex_dispatcher_num_sms");
    }
    const std::string backend = o_.enable_deepep ? "deepep" : o_.flex_backend;
    if (o_.rank_capacity_factor && ((backend != "hybridep" && backend != "ncclep") ||
                                    (backend == "hybridep" && !grouped_tensor() && !o_.op_fuser))) {
      refuse(list_, "moe_expert_rank_capacity_factor", *o_.rank_capacity_factor,
             "needs the backends ncclep, or hybridep with grouped tensors", "leave it out");
    }
    if (o_.padding_for_quantization) {
      // These settings exclude formats of 8 and 4 bits: another part covers their cases.
      refuse(list_, "moe_router_padding_for_quantization", "true", "needs fp8 or fp4", "turn it off");
    }
    if (type == "allgather" && o_.variable_seq_lengths)
      refuse(list_, "variable_seq_lengths", "true", "excludes the dispatcher allgather", "use alltoall");
    if (o_.permute_fusion) refuse(list_, "moe_permute_fusion", "true", "needs Transformer Engine", "turn it off");
    if (s_.experts.group_topk.value_or(0) != 0 && o_.topk_limited_devices.value_or(0) != 0) {
      refuse(list_, "moe_router_topk_limited_devices", *o_.topk_limited_devices,
             "is the older name of model.moe_router_group_topk", "give one of the two");
    }
  }

  void grouped_products() {
    const bool single = o_.single_grouped_weight || o_.single_grouped_bias;
    if (o_.use_grouped_tensor && !s_.experts.grouped_gemm)
      refuse(list_, "moe_use_grouped_tensor", "true", "needs model.moe_grouped_gemm", "turn it off");
    if (single) refuse(list_, "moe_single_grouped_weight", "true", "needs Transformer Engine", "turn it off");
    if (o_.layer_recompute && s_.recompute_granularity == "full") {
      refuse(list_, "moe_layer_recompute", "true", "excludes memory.recompute_granularity = full", "turn it off");
    }
  }

  void paged_stash() {
    if (!o_.paged_stash) return;
    if (s_.cpu_offloading || !o_.rank_capacity_factor || offloads_experts()) {
      refuse(list_, "moe_paged_stash", "true",
             "needs moe_expert_rank_capacity_factor and experts' activations that are not offloaded", "turn it off");
    }
  }

  void overlap() {
    if (o_.overlap_comm) overlapped_messages();
    if (o_.delay_wgrad && !o_.overlap_comm)
      refuse(list_, "delay_wgrad_compute", "true", "needs overlap_moe_expert_parallel_comm", "turn it off");
    if (o_.early_memory_release && !o_.overlap_comm) {
      refuse(list_, "ep_overlap_early_attn_memory_release", "true", "needs overlap_moe_expert_parallel_comm",
             "turn it off");
    }
    if (o_.overlap_dispatch_wgrad) {
      refuse(list_, "overlap_dispatch_backward_with_experts_wgrad", "true", "needs Transformer Engine",
             "turn it off");
    }
  }

  void overlapped_messages() {
    const auto require = [&](bool holds, const char* rule) {
      if (!holds) refuse(list_, "overlap_moe_expert_parallel_comm", "true", rule, "turn it off");
    };
    require(s_.pp == 1 || s_.vpp, "needs virtual stages in a pipeline");
    require(s_.ep > 1, "needs parallel.expert_model_parallel_size above 1");
    require(s_.experts.dispatcher == "alltoall" || s_.experts.dispatcher == "flex",
            "needs the dispatcher alltoall or flex");
    require(s_.recompute_granularity != "full" && !s_.recompute_method && !s_.recompute_num_layers,
            "excludes full recompute");
    require(!among("moe", recomputed()), "excludes the recompute of moe");
    require(s_.bf16 || s_.fp16, "needs bf16 or fp16");
    require(!s_.experts.shared_overlap, "excludes model.moe_shared_expert_overlap");
    require(
        !flex_with("ncclep") || !s_.fine_grained_activation_offloading || !among("expert_fc1", s_.offload_modules),
        "with ncclep excludes the offloading of expert_fc1");
  }

  const TransformerConfig& s_;
  const ExpertOptions& o_;
  std::vector<config::Violation> list_;
};

}  // namespace

// Metroplex also adds the bias of experts to a softmax.
static void check_expert_bias(const config::ExpertSettings& experts, std::vector<config::Violation>& list) {
  if (experts.expert_bias && experts.score_function == "softmax")
    list.push_back({"moe_router_enable_expert_bias", "true", "needs sigmoid or sqrtsoftplus scores", "turn it off"});
}

std::vector<config::Violation> violations(const TransformerConfig& given) {
  std::vector<config::Violation> list;
  check_expert_bias(given.experts, list);
  TransformerConfig settings = given;
  settings.graphs = settings.cuda_graphs = migrate_options(given.cuda_graphs, list);
  for (const auto& found :
       {config::transformer_violations(settings), Checker(settings).run(), graph_violations(settings)}) {
    list.insert(list.end(), found.begin(), found.end());
  }
  return list;
}

// Megatron's local implementation treats routing and preprocessing as one.
static config::GraphSettings resolved_graphs(const CudaGraphOptions& options) {
  std::vector<config::Violation> none;
  config::GraphSettings graphs = migrate_options(options, none);
  const bool routes = among("moe_router", graphs.modules), prepares = among("moe_preprocess", graphs.modules);
  if (graphs.impl == "local" && prepares && !routes) graphs.modules.emplace_back("moe_router");
  if (graphs.impl == "local" && routes && !prepares) graphs.modules.emplace_back("moe_preprocess");
  return graphs;
}

TransformerConfig resolve(TransformerConfig config) {
  if (!config.ffn_hidden_size) config.ffn_hidden_size = 4 * config.hidden_size;
  if (!config.kv_channels) config.kv_channels = config.hidden_size / config.num_attention_heads;
  if (!config.num_query_groups) config.num_query_groups = config.num_attention_heads;
  if (!config.etp) config.etp = config.tp;
  if (!config.microbatch_group_size_per_vp_stage) config.microbatch_group_size_per_vp_stage = config.pp;
  if (!config.recompute_modules) config.recompute_modules = {"core_attn"};
  if (config.expert_options.layer_recompute) {
    config.recompute_granularity = "selective";
    if (!among("moe", *config.recompute_modules)) config.recompute_modules->emplace_back("moe");
  }
  if (!config.experts.num_moe_experts) {
    config.experts.moe_ffn_hidden_size = {};
  } else if (!config.experts.moe_ffn_hidden_size) {
    config.experts.moe_ffn_hidden_size = config.ffn_hidden_size;
  }
  config.graphs = resolved_graphs(config.cuda_graphs);
  std::string problem;
  if (const auto stages = config.layout ? config::unrolled_layout(*config.layout, problem) : std::nullopt;
      stages && !config.vpp) {
    const int64_t virtual_stages = static_cast<int64_t>(stages->size()) / config.pp;
    if (virtual_stages > 1) config.vpp = virtual_stages;
  }
  return config;
}

}  // namespace metroplex::megatron

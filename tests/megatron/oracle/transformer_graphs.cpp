#include <algorithm>
#include <utility>

#include "config/cuda_graph.h"
#include "megatron/oracle/transformer_config.h"

namespace metroplex::megatron {

using base::concat;
using config::among;
using config::CudaGraphImpl;
using enum config::CudaGraphModule;
using Words = std::vector<std::string>;

static constexpr const char* kImpl = "cuda_graph_impl";
static constexpr const char* kScope = "cuda_graph_modules";
static constexpr const char* kInference = "inference_cuda_graph_scope";

namespace {

// Rules for settings with capture. Megatron's implementations cannot track reads and writes; ours can, so
// train.cuda_graph_impl accepts more (docs/cuda_graphs.md).
class GraphChecker {
 public:
  explicit GraphChecker(const TransformerConfig& settings)
      : s_(settings),
        impl_(*config::value_of<CudaGraphImpl>(s_.cuda_graphs.impl)),
        modules_(config::cuda_graph_module_set(s_.cuda_graphs.modules)) {
    if (impl_ == CudaGraphImpl::local && (modules_.has(moe_router) || modules_.has(moe_preprocess))) {
      modules_.add(moe_router);
      modules_.add(moe_preprocess);
    }
  }

  std::vector<config::Violation> run() {
    const bool iteration = impl_ == CudaGraphImpl::full_iteration;
    if (s_.cpu_offloading && !iteration)
      refuse(list_, "cpu_offloading", "true", concat("excludes ", kImpl, " = ", s_.cuda_graphs.impl), "turn it off");
    if (!iteration) experts();
    if (s_.recompute_granularity == "selective" || s_.expert_options.layer_recompute) recompute();
    if (s_.fine_grained_activation_offloading) offload();
    if (s_.expert_options.overlap_comm && impl_ == CudaGraphImpl::transformer_engine &&
        (modules_.has(moe) || modules_.has(mlp))) {
      refuse(list_, kScope, "", "excludes moe and mlp with overlap_moe_expert_parallel_comm", "leave them out");
    }
    // Without Transformer Engine no version of it supports this.
    if (s_.expert_options.delay_wgrad && impl_ == CudaGraphImpl::transformer_engine)
      refuse(list_, "delay_wgrad_compute", "true", "needs Transformer Engine for partial graphs", "turn it off");
    return std::move(list_);
  }

 private:
  void experts() {
    const config::ExpertSettings& expert = s_.experts;
    const bool capacity = expert.capacity_factor.value_or(-1) >= 0;
    if (expert.num_moe_experts.value_or(0) <= 1 || (capacity && expert.pad_to_capacity)) return;
    if (modules_.has(moe))
      refuse(list_, kScope, "moe", "needs experts whose inputs are padded to a capacity", "give both settings");
    if (modules_.has(moe_preprocess) && expert.dispatcher == "alltoall" &&
        (capacity || s_.expert_options.padding_for_quantization)) {
      refuse(list_, kScope, "moe_preprocess", "cannot hold what is copied to the host with a capacity",
             "leave it out");
    }
  }

  // A recompute inside a graph would have to repeat its random numbers.
  void recompute() {
    Words modules = s_.recompute_modules.value_or(Words{"core_attn"});
    if (s_.expert_options.layer_recompute) modules.emplace_back("moe");
    const bool whole = s_.cuda_graphs.modules.empty(), attention = whole || modules_.has(attn),
               dense = whole || modules_.has(mlp), experts = whole || modules_.has(moe);
    const auto forbid = [&](bool holds, const char* module, const char* rule) {
      if (holds && among(module, modules)) refuse(list_, "recompute_modules", module, rule, "leave it out");
    };
    forbid(impl_ == CudaGraphImpl::transformer_engine && modules_.has(moe_router), "moe",
           "excludes moe_router captured");
    forbid(s_.attention_dropout != 0 && attention, "core_attn", "excludes attention_dropout where it is captured");
    forbid(s_.hidden_dropout != 0 && dense, "mlp", "excludes hidden_dropout where it is captured");
    forbid(s_.hidden_dropout != 0 && experts, "moe", "excludes hidden_dropout where it is captured");
    forbid(s_.expert_options.input_jitter && experts, "moe", "excludes moe_input_jitter_eps where it is captured");
  }

  void offload() {
    static const Words kOfExperts{"expert_fc1", "moe_act", "fused_group_mlp"};
    const auto require = [&](bool holds, const char* rule) {
      if (!holds) refuse(list_, "fine_grained_activation_offloading", "true", rule, "turn it off");
    };
    const Words& moved = s_.offload_modules;
    const bool of_experts =
        std::all_of(moved.begin(), moved.end(), [](const std::string& module) { return among(module, kOfExperts); });
    if (impl_ == CudaGraphImpl::local) {
      require(of_experts, "moves expert tensors only, with cuda_graph_impl = local");
      require(!s_.cuda_graphs.modules.empty(), "excludes whole layers with cuda_graph_impl = local");
      require(!moved.empty(), "needs modules with cuda_graph_impl = local");
    }
    require(!modules_.has(moe), "excludes moe captured");
    require(s_.cuda_graphs.warmup_steps > 0, "needs a cuda_graph_warmup_steps of at least 1");
    require(
        impl_ != CudaGraphImpl::full_iteration || s_.max_inflight_offloads.value_or(-1) >= 0,
        "needs fine_grained_offloading_max_inflight_offloads of at least 0 with cuda_graph_impl = full_iteration");
  }

  const TransformerConfig& s_;
  const CudaGraphImpl impl_;
  config::CudaGraphModules modules_;
  std::vector<config::Violation> list_;
};

}  // namespace

std::vector<config::Violation> graph_violations(const TransformerConfig& settings) {
  const CudaGraphOptions& options = settings.cuda_graphs;
  const auto impl = config::value_of<CudaGraphImpl>(options.impl);
  std::vector<config::Violation> list;
  if (!impl) return list;  // config::graph_violations reports it
  const Words scopes = impl == CudaGraphImpl::local ? Words{"layer", "block"} : Words{"none"};
  if (options.inference_scope && !among(*options.inference_scope, scopes))
    refuse(list, kInference, *options.inference_scope, concat("excludes ", kImpl, " = ", options.impl),
           "leave it out");
  if (impl == CudaGraphImpl::none) return list;
  for (config::Violation& violation : GraphChecker(settings).run()) list.push_back(std::move(violation));
  return list;
}

}  // namespace metroplex::megatron

// Rules for sharding over data-parallel ranks and for saved activations.
#include "config/rules.h"

#include <algorithm>

#include "config/parallel.h"

namespace metroplex::config {

using base::concat;

void check_sharding(Rules& rules) {
  const Parallel& parallel = rules.config.parallel;
  static constexpr const char* kStrategy = "parallel.data_parallel_sharding_strategy";
  static constexpr const char* kInstances = "parallel.num_distributed_optimizer_instances";
  const Choice<ShardingStrategy> strategy = parallel.data_parallel_sharding_strategy;
  const Sharding sharding = parallel.sharding();
  const int64_t instances = parallel.num_distributed_optimizer_instances, ranks = rules.dp * parallel.cp();
  rules.require(sharding.any() || instances == 1, kInstances, instances,
                concat("has no meaning with ", kStrategy, " = no_shard, where every rank holds all of it"),
                "set it to 1, or use optim, optim_grads or optim_grads_params");
  rules.require(ranks == 0 || ranks % instances == 0, kInstances, instances,
                concat("must divide the ", ranks, " data-parallel ranks"), concat("choose a divisor of ", ranks));
  rules.require(
      !parallel.align_param_gather || (sharding.gathers_updates() && parallel.overlap_param_gather),
      "parallel.align_param_gather", "true",
      concat("needs parallel.overlap_param_gather and ", kStrategy, " = optim or optim_grads, not ", strategy),
      "turn it off");
}

void check_gradient_sums(Rules& rules) {
  const Config& config = rules.config;
  static constexpr const char *kKey = "parallel.reduce_scatter_with_fp32_accumulation", *kOff = "or turn it off";
  if (!config.parallel.reduce_scatter_with_fp32_accumulation) return;
  rules.require(config.parallel.sharding().any(), kKey, "true",
                "needs a reduce-scatter, but parallel.data_parallel_sharding_strategy = no_shard has an all-reduce",
                concat("use optim, optim_grads or optim_grads_params, ", kOff));
  const Precision& precision = config.precision;
  rules.require(precision.half() && precision.main_grads_dtype == MainGradsDtype::params, kKey, "true",
                concat("needs half-precision gradients, but precision.params_dtype = ", precision.params_dtype,
                       " and precision.main_grads_dtype = ", precision.main_grads_dtype),
                concat("use bf16 or fp16 with precision.main_grads_dtype = params, ", kOff));
}

// Returns the layers of the largest model chunk under the pipeline keys; 0 if they do not divide.
static int64_t largest_chunk(const Config& config) {
  const Parallel& parallel = config.parallel;
  if (!parallel.pipeline_model_parallel_layout.empty()) {
    std::string problem;
    int64_t most = 0;
    const auto stages = unrolled_layout(parallel.pipeline_model_parallel_layout, problem);
    for (const std::string& stage : stages.value_or(std::vector<std::string>{}))
      most = std::max<int64_t>(most, std::count(stage.begin(), stage.end(), 't'));
    return most;
  }
  const int64_t first = parallel.decoder_first_pipeline_num_layers, last = parallel.decoder_last_pipeline_num_layers;
  const int64_t counted =
      int64_t{parallel.account_for_embedding_in_pipeline_split} + parallel.account_for_loss_in_pipeline_split;
  const int64_t middle_stages = parallel.pp() - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
  const int64_t middle =
      middle_stages > 0 ? (config.model.num_layers + counted - first - last) / middle_stages : int64_t{0};
  const int64_t most = std::max({first, last, middle}) / parallel.vpp();
  return std::min(most, config.model.num_layers);
}

static void check_full_recompute(Rules& rules) {
  const Memory& m = rules.config.memory;
  const int64_t most = largest_chunk(rules.config);
  rules.require(m.recompute_num_layers <= most || most == 0, "memory.recompute_num_layers", m.recompute_num_layers,
                concat("must not exceed the ", most, " layers that a model chunk has at most (model.num_layers = ",
                       rules.config.model.num_layers, ")"),
                "lower it");
  rules.require(
      m.recompute_modules.empty(), "memory.recompute_modules", concat(m.recompute_modules.size(), " modules"),
      "are for memory.recompute_granularity = selective; full recomputes all of a layer", "leave the list empty");
  const bool all = m.recompute_method == RecomputeMethod::uniform || (most > 0 && m.recompute_num_layers >= most);
  rules.require(
      !rules.config.model.moe_paged_stash || !all, "model.moe_paged_stash", "true",
      concat("has no effect with full recompute of all layers (memory.recompute_method = ", m.recompute_method,
             "): backward stores no rows of experts"),
      "turn it off, or recompute moe_act instead, or with method block fewer layers than a model chunk has");
}

static void check_saved_activations(Rules& rules) {
  const Memory& m = rules.config.memory;
  const int64_t tp = rules.config.parallel.tp();
  static constexpr const char* kKey = "memory.distribute_saved_activations";
  if (!m.distribute_saved_activations) return;
  rules.require(tp > 1, kKey, "true", "needs parallel.tensor_model_parallel_size above 1 to shard them",
                "turn it off or use more tensor-parallel ranks");
  rules.require(
      m.recomputes_all(), kKey, "true",
      "shards the inputs that full recompute stores, but memory.recompute_granularity = " + m.recompute_granularity,
      "turn it off or use full");
  const Train& train = rules.config.train;
  const int64_t left =
      train.seq_length % tp * (train.micro_batch_size % tp) % tp * (rules.config.model.hidden_size % tp) % tp;
  rules.require(left == 0, kKey, "true",
                concat("train.seq_length * train.micro_batch_size * model.hidden_size must be a multiple of "
                       "parallel.tensor_model_parallel_size = ",
                       tp),
                "choose sizes that divide");
}

// rules_transformer.cpp has Megatron's rules about recomputation.
void check_recompute(Rules& rules) {
  const Memory& m = rules.config.memory;
  check_saved_activations(rules);
  if (m.recomputes_all()) return check_full_recompute(rules);
  const std::string granularity = "memory.recompute_granularity = " + m.recompute_granularity;
  const bool has_method = m.recompute_method != RecomputeMethod::none;
  static constexpr const char *kMethod = "memory.recompute_method", *kLeaveMethod = "leave it empty or use full";
  if (m.recompute_granularity == Recompute::selective)
    return rules.require(!has_method, kMethod, m.recompute_method, "is for full recompute, but " + granularity,
                         kLeaveMethod);
  rules.require_effect(!has_method, kMethod, m.recompute_method, "is for full recompute, but " + granularity,
                       kLeaveMethod);
  rules.require_effect(m.recompute_num_layers == 0, "memory.recompute_num_layers", m.recompute_num_layers,
                       "is for full recompute, but " + granularity, "leave it 0 or use full");
  rules.require_effect(m.recompute_modules.empty(), "memory.recompute_modules",
                       concat(m.recompute_modules.size(), " modules"),
                       "are for selective recompute, but " + granularity, "leave the list empty or use selective");
}

void check_offload(Rules& rules) {
  const Memory& m = rules.config.memory;
  const Run& run = rules.config.run;
  rules.require(m.offload_activations != Offload::host || run.device == Device::cuda || run.backend == Backend::nccl,
                "memory.offload_activations", m.offload_activations,
                "moves activations from GPUs, but run.device = " + run.device +
                    (run.device == Device::cpu ? " has them in host memory already" : " may compute on the CPU"),
                "use file, or recompute, or set run.device = cuda");
  rules.require(m.offload_directory.empty() || m.offload_activations == Offload::file, "memory.offload_directory",
                m.offload_directory, "is for memory.offload_activations = file, not " + m.offload_activations,
                "leave it empty or use file");
}

// A chunk with all tokens of a rank would compute the whole logits twice.
void check_loss_chunks(Rules& rules) {
  const Config& config = rules.config;
  const int64_t tokens = config.memory.loss_chunk_tokens,
                most = config.train.micro_batch_size * config.train.seq_length / config.parallel.cp();
  rules.require(tokens == 0 || tokens < most, "memory.loss_chunk_tokens", tokens,
                concat("must be less than the ", most,
                       " tokens of a rank (train.micro_batch_size * train.seq_length / "
                       "parallel.context_parallel_size)"),
                "lower it, or use 0");
}

}  // namespace metroplex::config

// The combinations of a search, and their configurations.
#include "forecast/search.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "config/load.h"

namespace metroplex::forecast {
namespace {

using config::Recompute;
using config::Schedule;
using config::ShardingStrategy;

std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t divisor = 1; divisor <= std::min(n, most); ++divisor) {
    if (n % divisor == 0) all.push_back(divisor);
  }
  return all;
}

class Lister {
 public:
  Lister(const config::Config& config, int64_t world, int64_t domain)
      : config_(config),
        world_(world),
        domain_(domain),
        experts_(config.model.num_moe_experts),
        split_layers_(config.model.num_layers + (config.parallel.account_for_embedding_in_pipeline_split ? 1 : 0) +
                      (config.parallel.account_for_loss_in_pipeline_split ? 1 : 0)) {}

  std::vector<Layout> run() {
    for (const int64_t tp : divisors(world_, std::min(domain_, config_.model.num_attention_heads))) {
      if (config_.model.num_attention_heads % tp != 0) continue;
      for (const int64_t cp : divisors(world_ / tp, kMostContext)) {
        if (!allows_context(cp)) continue;
        for (const int64_t pp : divisors(world_ / (tp * cp), split_layers_))
          add_stages({.tp = tp, .cp = cp, .pp = pp});
      }
    }
    return std::move(all_);
  }

 private:
  static constexpr int64_t kMostContext = 64, kMostMicroBatch = 8, kMostChunks = 8, kShortContext = 4096;

  // Short sequences are not split further.
  bool allows_context(int64_t cp) const {
    const int64_t seq = config_.train.seq_length;
    return cp == 1 || (seq % (2 * cp) == 0 && seq / cp >= std::min(kShortContext, seq / 2));
  }
  void add_stages(Layout layout) {
    const int64_t dp = layout.dp(world_);
    if (split_layers_ % layout.pp != 0 || config_.train.global_batch_size % dp != 0) return;
    const int64_t share = config_.train.global_batch_size / dp;
    for (const int64_t micro_batch : divisors(share, kMostMicroBatch)) {
      layout.micro_batch = micro_batch;
      for (const int64_t vpp : divisors(split_layers_ / layout.pp, layout.pp > 1 ? kMostChunks : 1)) {
        if (vpp > 1 && (share / micro_batch) % layout.pp != 0) continue;
        layout.vpp = vpp;
        add_experts(layout);
      }
    }
  }
  void add_experts(Layout layout) {
    if (experts_ == 0) return add_kinds(layout);
    for (const int64_t ep : divisors(experts_, world_ / layout.pp)) {
      for (const int64_t etp : layout.tp > 1 ? std::vector<int64_t>{1, layout.tp} : std::vector<int64_t>{1}) {
        if ((world_ / layout.pp) % (ep * etp) != 0) continue;
        layout.ep = ep, layout.etp = etp;
        add_kinds(layout);
      }
    }
  }
  void add_kinds(Layout layout) {
    const bool replicated = layout.dp(world_) * layout.cp > 1;
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      for (const ShardingStrategy sharding : {ShardingStrategy::no_shard, ShardingStrategy::optim,
                                              ShardingStrategy::optim_grads, ShardingStrategy::optim_grads_params}) {
        if (!replicated && sharding != ShardingStrategy::no_shard) continue;
        for (const Schedule schedule : {Schedule::automatic, Schedule::zb_h1, Schedule::zb_v}) {
          if (schedule == Schedule::zb_h1 && (layout.pp == 1 || layout.vpp != 1)) continue;
          if (schedule == Schedule::zb_v && (layout.pp == 1 || layout.vpp != 2)) continue;
          layout.recompute = recompute, layout.sharding = sharding, layout.schedule = schedule;
          all_.push_back(layout);
        }
      }
    }
  }

  const config::Config& config_;
  const int64_t world_, domain_, experts_, split_layers_;  // split_layers_: those that pipeline stages share
  std::vector<Layout> all_;
};

}  // namespace

config::Config Layout::apply(config::Config config) const {
  config::Parallel& parallel = config.parallel;
  parallel.tensor_model_parallel_size = tp;
  parallel.sequence_parallel = tp > 1;
  parallel.context_parallel_size = cp;
  parallel.pipeline_model_parallel_size = pp;
  parallel.virtual_pipeline_model_parallel_size = vpp;
  // Other keys that fit only the layout of the given configuration get their defaults.
  parallel.pipeline_model_parallel_layout.clear();
  parallel.decoder_first_pipeline_num_layers = parallel.decoder_last_pipeline_num_layers = 0;
  parallel.num_distributed_optimizer_instances = 1;
  parallel.overlap_p2p_comm = parallel.overlap_p2p_comm && vpp > 1;
  if (parallel.cp_comm_type.find('+') != std::string::npos) parallel.cp_comm_type = "p2p";
  parallel.hierarchical_context_parallel_sizes.clear();
  parallel.expert_model_parallel_size = ep;
  if (config.model.num_moe_experts > 0) parallel.expert_tensor_parallel_size = etp;
  parallel.data_parallel_sharding_strategy = sharding;
  parallel.pipeline_schedule = schedule;
  // Otherwise each stage starts its gather when the first microbatch arrives, and the delays of all stages add up.
  parallel.align_param_gather = pp > 1 && sharding == ShardingStrategy::optim && parallel.overlap_param_gather;
  config.precision.fp8_param_gather = config.precision.fp8_param_gather && parallel.sharding().any();
  config.train.micro_batch_size = micro_batch;
  config.memory.recompute_granularity = recompute;
  if (recompute != Recompute::selective) config.memory.recompute_modules.clear();
  const bool full = recompute == Recompute::full;
  config.memory.recompute_method = full ? config::RecomputeMethod::uniform : config::RecomputeMethod::none;
  config.memory.recompute_num_layers = full ? 1 : 0;
  if (offloads_activations) config.memory.offload_activations = config::Offload::host;
  if (offloads_optimizer) config.optim.optimizer_cpu_offload = true;
  if (!settings.empty()) config = config::parse(config::dump(config), settings);
  return config;
}

std::string Layout::to_string(int64_t world) const {
  std::string text = base::concat("tp ", tp);
  const auto add = [&](const char* name, int64_t size) {
    if (size > 1) text += base::concat(" ", name, " ", size);
  };
  add("cp", cp), add("pp", pp), add("vpp", vpp), add("ep", ep), add("etp", etp), add("dp", dp(world));
  text += base::concat(", micro batch ", micro_batch);
  if (sharding != ShardingStrategy::no_shard) text += base::concat(", ", config::text_of(sharding));
  if (recompute != Recompute::none) text += base::concat(", ", config::text_of(recompute), " recomputation");
  if (schedule != Schedule::automatic) text += base::concat(", ", config::text_of(schedule));
  if (offloads_activations) text += ", activations in host memory";
  if (offloads_optimizer) text += ", optimizer in host memory";
  for (const std::string& setting : settings) text += ", " + setting;
  return text;
}

std::vector<Layout> list_layouts(const PlanRequest& request) {
  const int64_t inner = request.machine.cluster.domains.front().ranks, world = request.run.world_size;
  return Lister(request.run.config, world, inner > 0 ? inner : world).run();
}

std::vector<Layout> list_offloads(const PlanRequest& request, Layout layout) {
  const config::Config& config = request.run.config;
  if (!request.run.domains.gpu || layout.offloads_optimizer ||
      config.memory.offload_activations != config::Offload::none || config.optim.optimizer_cpu_offload)
    return {};
  Layout optimizer = layout;
  optimizer.offloads_optimizer = true;
  if (layout.offloads_activations) return {optimizer};
  layout.offloads_activations = true;
  return {layout, optimizer};
}

std::vector<Alternatives> list_settings(const PlanRequest& request, const Layout& layout) {
  const config::Config& config = request.run.config;
  const int64_t world = request.run.world_size, dp = layout.dp(world), expert_ranks = layout.ep * layout.etp,
                node = request.machine.cluster.domains.front().ranks;
  std::vector<Alternatives> all;
  if (dp > 1 && (layout.pp > 1 || layout.cp > 1)) {
    Alternatives& orders = all.emplace_back();
    if (layout.pp > 1) orders.push_back({"parallel.order=tp-cp-ep-pp-dp"});
    if (layout.cp > 1) orders.push_back({"parallel.order=tp-ep-dp-cp-pp"});
  }
  if (dp * layout.cp > 1) {
    const int64_t bucket = std::max<int64_t>(40'000'000, 1'000'000 * dp);
    all.push_back({{base::concat("parallel.ddp_bucket_size=", bucket / 4)},
                   {base::concat("parallel.ddp_bucket_size=", bucket * 4)}});
  }
  if (layout.tp > 1 && config.model.num_moe_experts == 0) all.push_back({{"parallel.sequence_parallel=false"}});
  if (expert_ranks == 1) return all;
  all.push_back({{"model.moe_token_dispatcher_type=allgather"}});
  if (node > 1 && expert_ranks > node && expert_ranks % node == 0)
    all.back().push_back(
        {"model.moe_token_dispatcher_type=hierarchical", base::concat("parallel.expert_ranks_per_node=", node)});
  if (layout.ep > 1 && !request.experts.is_even() && !config.model.moe_enable_echo) {
    Alternatives& slots = all.emplace_back();
    for (const int64_t each : {1, 2})
      slots.push_back({"model.moe_enable_echo=true", base::concat("model.moe_num_echo_experts=", each * layout.ep)});
  }
  return all;
}

}  // namespace metroplex::forecast

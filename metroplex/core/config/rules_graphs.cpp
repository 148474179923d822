// Rules for graph capture beyond Megatron's (rules_transformer_graphs.cpp): cases that a replay cannot handle, and
// settings without effect. They apply to training only; generation and evaluation ignore them.
#include "config/rules.h"

#include "base/join.h"
#include "config/experts.h"
#include "config/layer_parts.h"

namespace metroplex::config {

using base::concat;

namespace {

constexpr const char* kImpl = "train.cuda_graph_impl";
constexpr const char* kScope = "train.cuda_graph_modules";

// The value that the host reads in MoE layers, and the setting that avoids the read; both empty if there is none.
struct HostReads {
  std::string what, instead;
};

HostReads host_reads(const Config& config) {
  const Model& m = config.model;
  const int64_t ranks = config.parallel.etp() * config.parallel.expert_model_parallel_size;
  if (!m.has_experts()) return {};
  if (dispatcher_reads_counts(m, ranks)) {
    return {concat("with model.moe_token_dispatcher_type = ", text_of(token_dispatcher(m, ranks)),
                   " it reads how many rows go to each rank"),
            "use static_buffer or allgather, set model.moe_expert_capacity_factor and "
            "moe_pad_expert_input_to_capacity"};
  }
  if (m.moe_grouped_gemm) return {};
  return {"with model.moe_grouped_gemm = false it reads how many rows go to each expert", "set moe_grouped_gemm"};
}

void check_parts_of_experts(Rules& rules) {
  using enum CudaGraphModule;
  const Train& train = rules.config.train;
  const Model& m = rules.config.model;
  const CudaGraphModules captured = train.captured_modules();
  if (!m.has_experts()) return;
  const HostReads reads = host_reads(rules.config);
  rules.require(
      reads.what.empty() || !captured.has(moe), kScope, train.cuda_graph_modules.empty() ? "" : "moe",
      concat(train.cuda_graph_modules.empty() ? "captures whole layers, those with experts too" : "is captured",
             ", where the host must read nothing: ", reads.what),
      reads.instead + ", or name attn, moe_router and moe_preprocess");
  rules.require(m.moe_echo_dump_dir.empty() || !(captured.has(moe) || captured.has(moe_preprocess)),
                "model.moe_echo_dump_dir", m.moe_echo_dump_dir,
                "reads every replica plan on the host, but plans are captured (" + std::string(kScope) + ")",
                "leave it out, or capture neither moe nor moe_preprocess");
}

// pipeline/stage.cpp captures no segment that backward recomputes. Module moe recomputes everything from the router
// to the end of the layer. The other modules recompute within a segment and can be captured.
void check_recomputed_experts(Rules& rules) {
  const Train& train = rules.config.train;
  if (!rules.config.model.has_experts() || !rules.config.memory.recomputes("moe")) return;
  if (train.cuda_graph_modules.empty()) {
    rules.require(false, kImpl, train.cuda_graph_impl,
                  concat("captures whole layers with an empty ", kScope,
                         ", but memory.recompute_modules = moe runs the experts of a layer again outside of graphs"),
                  concat("name attn in ", kScope, ", or recompute moe_act instead of moe"));
    return;
  }
  for (const std::string& word : train.cuda_graph_modules) {
    const std::optional<CudaGraphModule> module = value_of<CudaGraphModule>(word);
    const bool recomputed = module == CudaGraphModule::moe || module == CudaGraphModule::moe_router ||
                            module == CudaGraphModule::moe_preprocess;
    rules.require(!recomputed, kScope, word,
                  "cannot be captured with memory.recompute_modules = moe, which runs it again outside of graphs",
                  "leave it out, or recompute moe_act instead of moe");
  }
}

void check_parts(Rules& rules) {
  using enum CudaGraphModule;
  const Train& train = rules.config.train;
  const CudaGraphModules named = cuda_graph_module_set(train.cuda_graph_modules);
  rules.require(!named.has(mamba) || any_layer_has(rules.config.model, &LayerParts::mamba), kScope, "mamba",
                "does not exist in this model", "leave it out");
  check_parts_of_experts(rules);
  check_recomputed_experts(rules);
  const Choice<Offload> offload = rules.config.memory.offload_activations;
  rules.require(offload == Offload::none, "memory.offload_activations", offload,
                "moves tensors that a captured backward reads at fixed addresses: " + std::string(kImpl) + " = " +
                    train.cuda_graph_impl.text(),
                "use none, or cuda_graph_impl = none");
  const Parallel& parallel = rules.config.parallel;
  const Sharding sharding = parallel.sharding();
  rules.require(
      !sharding.transient_gradients() && !sharding.gathers_units(), "parallel.data_parallel_sharding_strategy",
      parallel.data_parallel_sharding_strategy,
      concat("reallocates ", sharding.gathers_units() ? "parameters" : "gradients", " between the modules that ",
             kImpl, " = ", train.cuda_graph_impl.text(), " captures, so their addresses change"),
      "use optim, or cuda_graph_impl = full_iteration");
}

void check_iteration(Rules& rules) {
  const Train& train = rules.config.train;
  const Model& m = rules.config.model;
  const std::string captured = concat(kImpl, " = ", train.cuda_graph_impl.text());
  const HostReads reads = host_reads(rules.config);
  rules.require(reads.what.empty(), kImpl, train.cuda_graph_impl,
                "captures layers with experts only where the host reads nothing: " + reads.what,
                reads.instead +
                    ", or use transformer_engine with cuda_graph_modules = attn, moe_router, "
                    "moe_preprocess");
  rules.require(m.moe_echo_dump_dir.empty(), "model.moe_echo_dump_dir", m.moe_echo_dump_dir,
                "reads every replica plan on the host, which " + captured + " cannot capture",
                "leave it out, or cuda_graph_impl = none");
  const Choice<Offload> offload = rules.config.memory.offload_activations;
  rules.require(offload != Offload::file, "memory.offload_activations", offload,
                "writes and reads a file on the host, which " + captured + " cannot capture",
                "use host or recompute, or cuda_graph_impl = none");
  rules.require(!rules.config.optim.optimizer_cpu_offload, "optim.optimizer_cpu_offload", "true",
                "updates on the host, which " + captured + " cannot capture",
                "turn it off, or use transformer_engine");
}

}  // namespace

void check_cuda_graphs(Rules& rules) {
  if (!rules.trains()) return;
  const Train& train = rules.config.train;
  rules.require(train.cuda_graph_impl != CudaGraphImpl::none || train.cuda_graph_modules.empty(), kScope,
                base::join(train.cuda_graph_modules, ","), concat("has no effect with ", kImpl, " = none"),
                "leave the list empty, or use transformer_engine");
  const Run& run = rules.config.run;
  const bool shares_gpu = run.device == Device::cuda && run.backend == Backend::threads && rules.world_size > 1;
  rules.require(!shares_gpu || train.cuda_graph_impl == CudaGraphImpl::none, kImpl, train.cuda_graph_impl,
                concat("captures the work of one rank, but with run.backend = threads the ", rules.world_size,
                       " ranks share a GPU and wait for each other's events, which a capture cannot do"),
                "use run.backend = nccl with one GPU a rank, or none");
  if (train.captures_parts()) check_parts(rules);
  if (train.captures_iteration()) check_iteration(rules);
}

}  // namespace metroplex::config

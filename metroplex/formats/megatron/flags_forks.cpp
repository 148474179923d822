// Supported flags of Megatron's forks: flags with an exact equivalent, and flags that do not affect weights, data and
// losses. Other flags of forks are refused.
#include "megatron/flags.h"

namespace metroplex::megatron {

const std::vector<FlagRow>& fork_rows() {
  using enum ArgumentCount;
  static const std::vector<FlagRow> kRows = {
      // Megatron-DeepSpeed, CodeGeeX
      {"--deepspeed", kNone, "deepspeed=true"},
      {"--zero-stage", kOne, "zero_stage=$"},
      {"--deepspeed-activation-checkpointing", kNone, "full_recompute=true"},
      {"--partition-activations", kNone, "memory.distribute_saved_activations=true"},
      {"--no-pipeline-parallel", kNone, "parallel.pipeline_model_parallel_size=1"},
      {"--ds-sequence-parallel-size", kOne, "parallel.context_parallel_size=$;cp_comm_type=a2a"},
      {"--ds-fused-adam", kNone, "optimizer=adam"},
      {"--cpu-optimizer", kNone, "optim.optimizer_cpu_offload=true"},
      {"--cpu-torch-adam", kNone, "optim.optimizer_cpu_offload=true"},
      {"--dist-timeout", kOne, "run.distributed_timeout_minutes=$"},
      {"--num-key-value-heads", kOne, "gqa=true;query_groups=$"},
      // BigScience, MindSpeed
      {"--tokenizer-name-or-path", kOne, "tokenizer_path=$"},
      {"--pad-vocab-size-to", kOne, "padded_vocabulary=$"},
      {"--rotary-position-embeddings-theta", kOne, "model.rotary_base=$"},
      // Pai, BigCode
      {"--attention-head-type", kOne, "head_type=$"},
      {"--enable-shared-expert", kNone, "shared_expert=true"},
      {"--shared-moe-ffn-hidden-size", kOne, "shared_width=$"},
      // Megatron-LLM
      {"--use-bias", kNone, "use_bias=true"},
      // MindSpeed
      {"--context-parallel-algo", kOne, "cp_algorithm=$"},
      {"--multi-head-latent-attention", kNone, "model.multi_latent_attention=true"},
      {"--qk-nope-head-dim", kOne, "model.qk_head_dim=$"},
      {"--qk-rope-head-dim", kOne, "model.qk_pos_emb_head_dim=$"},
      {"--moe-intermediate-size", kOne, "model.moe_ffn_hidden_size=$"},
      {"--n-group", kOne, "model.moe_router_num_groups=$"},
      {"--topk-group", kOne, "model.moe_router_group_topk=$"},
      {"--routed-scaling-factor", kOne, "model.moe_router_topk_scaling_factor=$"},
      {"--attn-logit-softcapping", kOne, "model.attn_logit_softcapping=$"},
      {"--output-logit-softcapping", kOne, "model.final_logit_softcapping=$"},
      {"--post-norm", kNone, "model.sandwich_norm=true"},
      {"--swap-optimizer", kNone, "optim.optimizer_cpu_offload=true"},
      {"--npu-deterministic", kNone, "run.deterministic_mode=true"},
      {"--use-deter-comp", kNone, "run.deterministic_mode=true"},
  };
  return kRows;
}

const std::vector<FlagGroup>& fork_harmless() {
  static const std::vector<FlagGroup> kGroups = {
      {"Megatron-DeepSpeed, CodeGeeX: kernels, buffers and logs",
       "--checkpoint-in-cpu --contigious-checkpointing --disable-mem-efficient-ln --force-default --force-device= "
       "--ln-fp16 --log-optimizer-states-to-tensorboard --low-memory-load --profile-backward --remote-device= "
       "--synchronize-each-layer --use-flash-attn-builder --use-flash-attn-triton --use-flash-attn-v1 "
       "--use-flash-attn-v2 --use-pin-memory --zero-allgather-bucket-size= --zero-contigious-gradients "
       "--zero-reduce-bucket-size= --zero-reduce-scatter"},
      {"BigScience, BigCode: checks, logs and workers",
       "--abort-on-unmet-fused-kernel-constraints --codecarbon-dir= --kill-switch-path= --log-level= "
       "--log-level-replica= --structured-logs --structured-logs-dir= --valid-num-workers= --wandb-entity-name= "
       "--wandb-project-name="},
      {"branches of Megatron: graph memory and kernels",
       "--cuda-graph-retain-backward-graph --cuda-graph-use-single-mempool --moe-echo-expert-dispatcher-type= "
       "--moe-use-device-initiated-grouped-gemm"},
      {"MindSpeed: kernels and communication",
       "--coc-fused-kernel --disable-gloo-group --gemm-gradient-accumulation-fusion --mla-fa-without-pad "
       "--moe-allgather-overlap-comm --moe-alltoall-overlap-comm --moe-fb-overlap --moe-permutation-async-comm "
       "--mtp-mem-efficient-logits --no-shared-storage --recompute-activation-function --reuse-fp32-param "
       "--shape-order= --swap-attention --tokenizer-not-use-fast --use-ascend-coc --use-ascend-mc2 "
       "--use-cp-send-recv-overlap --use-fused-moe-token-permute-and-unpermute --use-fused-ring-attention-update "
       "--use-fused-rmsnorm --use-fused-rotary-pos-emb --use-fused-swiglu --use-fusion-attn-v2"},
  };
  return kGroups;
}

}  // namespace metroplex::megatron

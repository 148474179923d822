#include "megatron/flags.h"

namespace metroplex::megatron {

using Row = FlagRow;
constexpr ArgumentCount kNone = ArgumentCount::kNone, kOne = ArgumentCount::kOne, kList = ArgumentCount::kList,
                        kThree = ArgumentCount::kThree, kText = ArgumentCount::kText;

static const std::vector<Row>& model_rows() {
  static const std::vector<Row> kRows = {
      {"--num-layers", kOne, "model.num_layers=$"},
      {"--encoder-num-layers", kOne, "model.num_layers=$"},
      {"--hidden-size", kOne, "model.hidden_size=$"},
      {"--ffn-hidden-size", kOne, "model.ffn_hidden_size=$"},
      {"--num-attention-heads", kOne, "model.num_attention_heads=$"},
      {"--kv-channels", kOne, "model.kv_channels=$"},
      {"--group-query-attention", kNone, "gqa=true"},
      {"--num-query-groups", kOne, "query_groups=$"},
      {"--max-position-embeddings", kOne, "model.max_position_embeddings=$"},
      {"--position-embedding-type", kOne, "position_type=$"},
      {"--use-rotary-position-embeddings", kNone, "rotary=true"},
      {"--no-position-embedding", kNone, "no_position=true"},
      {"--rotary-base", kOne, "model.rotary_base=$"},
      {"--use-rope-scaling", kNone, "model.use_rope_scaling=true"},
      {"--rope-scaling-factor", kOne, "model.rope_scaling_factor=$"},
      {"--rotary-percent", kOne, "model.rotary_percent=$"},
      {"--rotary-interleaved", kNone, "model.rotary_interleaved=true"},
      {"--rotary-seq-len-interpolation-factor", kOne, "model.rotary_seq_len_interpolation_factor=$"},
      {"--rope-type", kOne, "model.rope_type=$"},
      {"--rotary-scaling-factor", kOne, "model.rotary_scaling_factor=$"},
      {"--original-max-position-embeddings", kOne, "model.original_max_position_embeddings=$"},
      {"--yarn-original-max-position-embeddings", kOne, "yarn_positions=$"},
      {"--beta-fast", kOne, "model.beta_fast=$"},
      {"--yarn-beta-fast", kOne, "yarn_beta_fast=$"},
      {"--beta-slow", kOne, "model.beta_slow=$"},
      {"--yarn-beta-slow", kOne, "yarn_beta_slow=$"},
      {"--yarn-correction-range-round-to-int", kNone, "yarn_rounds=true"},
      {"--no-yarn-correction-range-round-to-int", kNone, "yarn_rounds=false"},
      {"--mscale", kOne, "model.mscale=$"},
      {"--mscale-all-dim", kOne, "model.mscale_all_dim=$"},
      {"--no-rope-freq", kOne, "model.no_rope_freq=$"},
      {"--window-size", kText, "window=$"},
      {"--window-attn-skip-freq", kOne, "model.window_attn_skip_freq=$"},
      {"--experimental-attention-variant", kOne, "attention_variant=$"},
      {"--linear-attention-freq", kOne, "model.linear_attention_freq=$"},
      {"--linear-conv-kernel-dim", kOne, "model.linear_conv_kernel_dim=$"},
      {"--linear-key-head-dim", kOne, "model.linear_key_head_dim=$"},
      {"--linear-value-head-dim", kOne, "model.linear_value_head_dim=$"},
      {"--linear-num-key-heads", kOne, "model.linear_num_key_heads=$"},
      {"--linear-num-value-heads", kOne, "model.linear_num_value_heads=$"},
      {"--attention-output-gate", kNone, "model.attention_output_gate=true"},
      {"--softmax-type", kOne, "model.softmax_type=$"},
      {"--softmax-scale", kOne, "model.softmax_scale=$"},
      {"--apply-layernorm-1p", kNone, "model.apply_layernorm_1p=true"},
      {"--activation-func-clamp-value", kOne, "model.activation_func_clamp_value=$"},
      {"--glu-linear-offset", kOne, "model.glu_linear_offset=$"},
      {"--multi-latent-attention", kNone, "model.multi_latent_attention=true"},
      {"--q-lora-rank", kOne, "model.q_lora_rank=$"},
      {"--kv-lora-rank", kOne, "model.kv_lora_rank=$"},
      {"--qk-head-dim", kOne, "model.qk_head_dim=$"},
      {"--qk-pos-emb-head-dim", kOne, "model.qk_pos_emb_head_dim=$"},
      {"--v-head-dim", kOne, "model.v_head_dim=$"},
      {"--hybrid-layer-pattern", kText, "hybrid_pattern=$"},
      {"--hybrid-override-pattern", kText, "hybrid_pattern=$"},
      {"--is-hybrid-model", kNone, "is_hybrid=true"},
      {"--mamba-state-dim", kOne, "mamba_state_dim=$"},
      {"--mamba-head-dim", kOne, "mamba_head_dim=$"},
      {"--mamba-num-groups", kOne, "mamba_num_groups=$"},
      {"--mamba-num-heads", kOne, "mamba_num_heads=$"},
      {"--mtp-num-layers", kOne, "model.mtp_num_layers=$"},
      {"--mtp-loss-scaling-factor", kOne, "model.mtp_loss_scaling_factor=$"},
      {"--normalization", kOne, "normalization=$"},
      {"--norm-epsilon", kOne, "model.layernorm_epsilon=$"},
      {"--layernorm-epsilon", kOne, "model.layernorm_epsilon=$"},
      {"--swiglu", kNone, "swiglu=true"},
      {"--quick-geglu", kNone, "quick_geglu=true"},
      {"--squared-relu", kNone, "squared_relu=true"},
      {"--openai-gelu", kNone, "openai_gelu=true"},
      {"--no-bias-gelu-fusion", kNone, "no_gelu_fusion=true"},
      {"--disable-bias-linear", kNone, "model.add_bias_linear=false"},
      {"--add-qkv-bias", kNone, "model.add_qkv_bias=true"},
      {"--qk-layernorm", kNone, "model.qk_layernorm=true"},
      {"--qk-l2-norm", kNone, "model.qk_l2_norm=true"},
      {"--untie-embeddings-and-output-weights", kNone, "model.untie_embeddings_and_output_weights=true"},
      {"--make-vocab-size-divisible-by", kOne, "model.make_vocab_size_divisible_by=$"},
      {"--vocab-size", kOne, "vocab_size=$"},
      {"--padded-vocab-size", kOne, "padded_vocabulary=$"},
      {"--attention-dropout", kOne, "model.attention_dropout=$"},
      {"--hidden-dropout", kOne, "model.hidden_dropout=$"},
      {"--init-method-std", kOne, "model.init_method_std=$"},
      {"--use-cpu-initialization", kNone, "model.sharded_initialization=false"},
  };
  return kRows;
}

static const std::vector<Row>& expert_rows() {
  static const std::vector<Row> kRows = {
      {"--num-experts", kOne, "model.num_moe_experts=$"},
      {"--moe-layer-freq", kOne, "model.moe_layer_freq=$"},
      {"--moe-ffn-hidden-size", kOne, "model.moe_ffn_hidden_size=$"},
      {"--moe-latent-size", kOne, "model.moe_latent_size=$"},
      {"--moe-router-topk", kOne, "model.moe_router_topk=$"},
      {"--moe-router-score-function", kOne, "model.moe_router_score_function=$"},
      {"--moe-router-pre-softmax", kNone, "model.moe_router_pre_softmax=true"},
      {"--moe-router-num-groups", kOne, "model.moe_router_num_groups=$"},
      {"--moe-router-group-topk", kOne, "model.moe_router_group_topk=$"},
      {"--moe-router-topk-scaling-factor", kOne, "model.moe_router_topk_scaling_factor=$"},
      {"--moe-router-enable-expert-bias", kNone, "model.moe_router_enable_expert_bias=true"},
      {"--moe-router-bias-update-rate", kOne, "model.moe_router_bias_update_rate=$"},
      {"--moe-router-load-balancing-type", kText, "balancing=$"},
      {"--moe-aux-loss-coeff", kText, "aux_loss_coeff=$"},
      {"--moe-z-loss-coeff", kOne, "model.moe_z_loss_coeff=$"},
      {"--moe-input-jitter-eps", kOne, "model.moe_input_jitter_eps=$"},
      {"--moe-router-dtype", kOne, "model.moe_router_dtype=$"},
      {"--moe-router-force-load-balancing", kNone, "model.moe_router_force_load_balancing=true"},
      {"--moe-expert-capacity-factor", kOne, "model.moe_expert_capacity_factor=$"},
      {"--moe-pad-expert-input-to-capacity", kNone, "model.moe_pad_expert_input_to_capacity=true"},
      {"--moe-token-drop-policy", kOne, "model.moe_token_drop_policy=$"},
      {"--moe-token-dispatcher-type", kOne, "dispatcher=$"},
      {"--moe-flex-dispatcher-backend", kOne, "flex_backend=$"},
      {"--moe-dispatch-fwd-dtype", kOne, "dispatch_dtype=$"},
      {"--moe-combine-bwd-dtype", kOne, "combine_dtype=$"},
      {"--moe-expert-rank-capacity-factor", kOne, "rank_capacity=$"},
      {"--moe-received-token-capacity", kOne, "rank_capacity=$"},
      {"--moe-paged-stash", kNone, "model.moe_paged_stash=true"},
      {"--moe-paged-stash-page-size", kOne, "model.moe_paged_stash_page_size=$"},
      {"--moe-paged-stash-buffer-size-factor-cuda", kOne, "model.moe_paged_stash_buffer_size_factor_cuda=$"},
      {"--moe-paged-stash-buffer-size-factor-cpu", kOne, "model.moe_paged_stash_buffer_size_factor_cpu=$"},
      {"--moe-enable-echo", kNone, "model.moe_enable_echo=true"},
      {"--moe-num-echo-experts", kOne, "model.moe_num_echo_experts=$"},
      {"--moe-echo-recompute-expert-dispatch", kNone, "model.moe_echo_recompute_expert_dispatch=true"},
      {"--moe-echo-expert-dispatch-overlap", kNone, "model.moe_echo_expert_dispatch_overlap=true"},
      {"--moe-echo-enable-random-offloading", kNone, "model.moe_echo_enable_random_offloading=true"},
      {"--moe-echo-dump-dir", kOne, "model.moe_echo_dump_dir=$"},
      {"--moe-grouped-gemm", kNone, "model.moe_grouped_gemm=true"},
      {"--moe-apply-probs-on-input", kNone, "model.moe_apply_probs_on_input=true"},
      {"--moe-shared-expert-intermediate-size", kOne, "model.moe_shared_expert_intermediate_size=$"},
      {"--moe-shared-expert-gate", kNone, "model.moe_shared_expert_gate=true"},
      {"--moe-shared-expert-overlap", kNone, "model.moe_shared_expert_overlap=true"},
      {"--moe-layer-recompute", kNone, "moe_layer_recompute=true"},
  };
  return kRows;
}

static const std::vector<Row>& parallel_rows() {
  static const std::vector<Row> kRows = {
      {"--tensor-model-parallel-size", kOne, "parallel.tensor_model_parallel_size=$"},
      {"--pipeline-model-parallel-size", kOne, "parallel.pipeline_model_parallel_size=$"},
      {"--num-layers-per-virtual-pipeline-stage", kOne, "layers_per_virtual_stage=$"},
      {"--num-virtual-stages-per-pipeline-rank", kOne, "parallel.virtual_pipeline_model_parallel_size=$"},
      {"--pipeline-model-parallel-layout", kOne, "parallel.pipeline_model_parallel_layout=$"},
      {"--microbatch-group-size-per-virtual-pipeline-stage", kOne, "parallel.microbatch_group_size_per_vp_stage=$"},
      {"--decoder-first-pipeline-num-layers", kOne, "parallel.decoder_first_pipeline_num_layers=$"},
      {"--decoder-last-pipeline-num-layers", kOne, "parallel.decoder_last_pipeline_num_layers=$"},
      {"--account-for-embedding-in-pipeline-split", kNone, "parallel.account_for_embedding_in_pipeline_split=true"},
      {"--account-for-loss-in-pipeline-split", kNone, "parallel.account_for_loss_in_pipeline_split=true"},
      {"--context-parallel-size", kOne, "parallel.context_parallel_size=$"},
      {"--cp-comm-type", kText, "cp_comm_type=$"},
      {"--hierarchical-context-parallel-sizes", kText, "context_levels=$"},
      {"--hybrid-context-parallel", kNone,
       "parallel.hybrid_context_parallel=true;parallel.context_parallel_cut=balanced"},
      {"--max-seqlen-per-dp-cp-rank", kOne, "parallel.max_seqlen_per_dp_cp_rank=$"},
      {"--max-seqlen-per-cp-rank", kOne, "parallel.max_seqlen_per_dp_cp_rank=$"},
      {"--expert-model-parallel-size", kOne, "parallel.expert_model_parallel_size=$"},
      {"--expert-tensor-parallel-size", kOne, "parallel.expert_tensor_parallel_size=$"},
      {"--sequence-parallel", kNone, "parallel.sequence_parallel=true"},
      {"--overlap-moe-expert-parallel-comm", kNone, "parallel.overlap_moe_expert_parallel_comm=true"},
      {"--delay-wgrad-compute", kNone, "parallel.delay_wgrad_compute=true"},
      {"--use-tp-pp-dp-mapping", kNone, "parallel.order=tp-cp-ep-pp-dp"},
      {"--no-overlap-p2p-communication", kNone, "no_overlap_p2p=true"},
      {"--overlap-p2p-communication", kNone, "overlap_p2p=true"},
      {"--overlap-grad-reduce", kNone, "parallel.overlap_grad_reduce=true"},
      {"--ddp-bucket-size", kOne, "bucket_size=$"},
      {"--use-distributed-optimizer", kNone, "sharded=optim"},
      {"--use-megatron-fsdp", kNone, "fsdp=true"},
      {"--use-custom-fsdp", kNone, "fsdp=true"},
      {"--use-torch-fsdp2", kNone, "torch_fsdp2=true"},
      {"--torch-fsdp2-no-reshard-after-forward", kNone, "fsdp2_keeps_weights=true"},
      {"--data-parallel-sharding-strategy", kOne, "strategy=$"},
      {"--overlap-param-gather", kNone, "parallel.overlap_param_gather=true"},
      {"--align-param-gather", kNone, "align_param_gather=true"},
      {"--no-align-param-gather", kNone, "align_param_gather=false"},
      {"--num-distributed-optimizer-instances", kOne, "parallel.num_distributed_optimizer_instances=$"},
      {"--distributed-backend", kOne, "backend=$"},
      {"--distributed-timeout-minutes", kOne, "run.distributed_timeout_minutes=$"},
      {"--seed", kOne, "run.seed=$"},
      {"--deterministic-mode", kNone, "run.deterministic_mode=true"},
  };
  return kRows;
}

static const std::vector<Row>& optim_rows() {
  static const std::vector<Row> kRows = {
      {"--optimizer", kOne, "optimizer=$"},
      {"--lr", kOne, "optim.lr=$"},
      {"--min-lr", kOne, "optim.min_lr=$"},
      {"--lr-decay-style", kOne, "optim.lr_decay_style=$"},
      {"--lr-decay-iters", kOne, "optim.lr_decay_iters=$"},
      {"--lr-decay-samples", kOne, "optim.lr_decay_samples=$"},
      {"--lr-warmup-iters", kOne, "optim.lr_warmup_iters=$"},
      {"--lr-warmup-samples", kOne, "optim.lr_warmup_samples=$"},
      {"--lr-warmup-fraction", kOne, "optim.lr_warmup_fraction=$"},
      {"--lr-warmup-init", kOne, "optim.lr_warmup_init=$"},
      {"--lr-wsd-decay-style", kOne, "optim.lr_wsd_decay_style=$"},
      {"--lr-wsd-decay-iters", kOne, "optim.lr_wsd_decay_iters=$"},
      {"--lr-wsd-decay-samples", kOne, "optim.lr_wsd_decay_samples=$"},
      {"--weight-decay", kOne, "optim.weight_decay=$"},
      {"--start-weight-decay", kOne, "optim.start_weight_decay=$"},
      {"--end-weight-decay", kOne, "optim.end_weight_decay=$"},
      {"--weight-decay-incr-style", kOne, "optim.weight_decay_incr_style=$"},
      {"--adam-beta1", kOne, "optim.adam_beta1=$"},
      {"--adam-beta2", kOne, "optim.adam_beta2=$"},
      {"--adam-eps", kOne, "optim.adam_eps=$"},
      {"--sgd-momentum", kOne, "optim.sgd_momentum=$"},
      {"--lion-beta1", kOne, "optim.lion_beta1=$"},
      {"--lion-beta2", kOne, "optim.lion_beta2=$"},
      {"--muon-momentum", kOne, "optim.muon_momentum=$"},
      {"--muon-num-ns-steps", kOne, "optim.muon_num_ns_steps=$"},
      {"--muon-nesterov", kNone, "optim.muon_use_nesterov=true"},
      {"--muon-use-nesterov", kNone, "optim.muon_use_nesterov=true"},
      {"--muon-no-use-nesterov", kNone, "optim.muon_use_nesterov=false"},
      {"--muon-coefficient-type", kOne, "optim.muon_coefficient_type=$"},
      {"--muon-no-split-qkv", kNone, "optim.muon_split_qkv=false"},
      {"--muon-scale-mode", kOne, "optim.muon_scale_mode=$"},
      {"--muon-extra-scale-factor", kOne, "optim.muon_extra_scale_factor=$"},
      {"--decoupled-lr", kOne, "optim.decoupled_lr=$"},
      {"--decoupled-min-lr", kOne, "optim.decoupled_min_lr=$"},
      {"--apply-wd-to-qk-layernorm", kNone, "optim.apply_wd_to_qk_layernorm=true"},
      {"--no-weight-decay-cond-type", kOne, "no_weight_decay_cond_type=$"},
      {"--use-precision-aware-optimizer", kNone, "precision_aware=true"},
      {"--main-params-dtype", kOne, "optim.main_params_dtype=$"},
      {"--exp-avg-dtype", kOne, "exp_avg_dtype=$"},
      {"--exp-avg-sq-dtype", kOne, "exp_avg_sq_dtype=$"},
      {"--store-param-remainders", kNone, "optim.store_param_remainders=true"},
      {"--optimizer-cpu-offload", kNone, "optim.optimizer_cpu_offload=true"},
      {"--clip-grad", kOne, "optim.clip_grad=$"},
      {"--override-opt-param-scheduler", kNone, "optim.override_opt_param_scheduler=true"},
      {"--override-lr-scheduler", kNone, "optim.override_opt_param_scheduler=true"},
      {"--use-checkpoint-opt-param-scheduler", kNone, "optim.use_checkpoint_opt_param_scheduler=true"},
      {"--use-checkpoint-lr-scheduler", kNone, "optim.use_checkpoint_opt_param_scheduler=true"},
  };
  return kRows;
}

static const std::vector<Row>& precision_rows() {
  static const std::vector<Row> kRows = {
      {"--bf16", kNone, "bf16=true;precision.params_dtype=bf16"},
      {"--fp16", kNone, "fp16=true;precision.params_dtype=fp16"},
      {"--fp32-residual-connection", kNone, "precision.fp32_residual_connection=true"},
      {"--accumulate-allreduce-grads-in-fp32", kNone, "grads_in_fp32=true"},
      {"--grad-reduce-in-bf16", kNone, "grads_in_bf16=true"},
      {"--main-grads-dtype", kOne, "main_grads_dtype=$"},
      {"--output-logit-dtype", kOne, "logit_dtype=$"},
      {"--ddp-reduce-scatter-with-fp32-accumulation", kNone, "fp32_sums=true"},
      {"--megatron-fsdp-main-grads-dtype", kOne, "fsdp_grads_dtype=$"},
      {"--loss-scale", kOne, "precision.loss_scale=$"},
      {"--initial-loss-scale", kOne, "precision.initial_loss_scale=$"},
      {"--min-loss-scale", kOne, "precision.min_loss_scale=$"},
      {"--min-scale", kOne, "precision.min_loss_scale=$"},
      {"--loss-scale-window", kOne, "precision.loss_scale_window=$"},
      {"--hysteresis", kOne, "precision.hysteresis=$"},
      {"--fp8-format", kOne, "precision.fp8_format=$"},
      {"--fp8-e4m3", kNone, "precision.fp8_format=e4m3"},
      {"--fp8-hybrid", kNone, "precision.fp8_format=hybrid"},
      {"--fp8-recipe", kOne, "precision.fp8_recipe=$"},
      {"--fp8-margin", kOne, "precision.fp8_margin=$"},
      {"--fp8-amax-history-len", kOne, "precision.fp8_amax_history_len=$"},
      {"--fp8-param-gather", kNone, "fp8_param_gather=true"},
      {"--fp8-output-proj", kNone, "precision.fp8_output_proj=true"},
      {"--no-fp8-wgrad", kNone, "precision.fp8_wgrad=false"},
      {"--disable-fp8-wgrad", kNone, "precision.fp8_wgrad=false"},
      {"--fp4-format", kOne, "precision.fp4_format=$"},
      {"--fp8-amax-compute-algo", kOne, "precision.fp8_amax_compute_algo=$"},
      {"--first-last-layers-bf16", kNone, "precision.first_last_layers_bf16=true"},
      {"--num-layers-at-start-in-bf16", kOne, "precision.num_layers_at_start_in_bf16=$"},
      {"--num-layers-at-end-in-bf16", kOne, "precision.num_layers_at_end_in_bf16=$"},
      {"--check-for-nan-in-loss-and-grad", kNone,
       "train.check_for_nan_in_loss=true;precision.check_for_nan_in_grad=true"},
      {"--no-check-for-nan-in-loss-and-grad", kNone,
       "train.check_for_nan_in_loss=false;precision.check_for_nan_in_grad=false"},
      {"--check-for-large-grads", kNone, "precision.check_for_large_grads=true"},
      {"--grad-norm-skip-threshold", kOne, "precision.grad_norm_skip_threshold=$"},
  };
  return kRows;
}

static const std::vector<Row>& memory_rows() {
  static const std::vector<Row> kRows = {
      {"--recompute-granularity", kOne, "granularity=$"},
      {"--recompute-activations", kNone, "recompute_activations=true"},
      {"--recompute-method", kOne, "memory.recompute_method=$"},
      {"--recompute-num-layers", kOne, "memory.recompute_num_layers=$"},
      {"--recompute-modules", kList, "recompute_modules=$"},
      {"--distribute-saved-activations", kNone, "memory.distribute_saved_activations=true"},
      {"--distribute-checkpointed-activations", kNone, "memory.distribute_saved_activations=true"},
      {"--activations-checkpoint-method", kOne, "checkpoint_method=$"},
      {"--activations-checkpoint-num-layers", kOne, "memory.recompute_num_layers=$"},
      {"--checkpoint-activations", kNone, "full_recompute=true"},
      {"--checkpoint-num-layers", kOne, "memory.recompute_num_layers=$"},
      {"--fine-grained-activation-offloading", kNone, "memory.offload_activations=host"},
      {"--cpu-offloading", kNone, "memory.offload_activations=host"},
      {"--cpu-offloading-num-layers", kOne, "offload_layers=$"},
  };
  return kRows;
}

static const std::vector<Row>& data_rows() {
  static const std::vector<Row> kRows = {
      {"--data-path", kList, "data.data_path=$"},
      {"--train-data-path", kList, "data.train_data_path=$"},
      {"--valid-data-path", kList, "data.valid_data_path=$"},
      {"--test-data-path", kList, "data.test_data_path=$"},
      {"--split", kText, "data.split=$"},
      {"--mock-data", kNone, "data.mock_data=true"},
      {"--data-cache-path", kOne, "data.data_cache_path=$"},
      {"--tokenizer-type", kOne, "tokenizer=$"},
      {"--tokenizer-model", kOne, "data.tokenizer_model=$"},
      {"--vocab-file", kOne, "data.vocab_file=$"},
      {"--merge-file", kOne, "data.merge_file=$"},
      {"--multiple-validation-sets", kNone, "data.multiple_validation_sets=true"},
      {"--dataloader-type", kOne, "data.dataloader_type=$"},
      {"--no-data-sharding", kNone, "data.data_sharding=false"},
      {"--reset-position-ids", kNone, "data.reset_position_ids=true"},
      {"--reset-attention-mask", kNone, "data.reset_attention_mask=true"},
      {"--no-create-attention-mask-in-dataloader", kNone, "no_mask=true"},
      {"--eod-mask-loss", kNone, "data.eod_mask_loss=true"},
      {"--num-workers", kOne, "data.num_workers=$"},
      {"--save", kOne, "checkpoint.save=$"},
      {"--load", kOne, "checkpoint.load=$"},
      {"--save-interval", kOne, "checkpoint.save_interval=$"},
      {"--persistent-save-interval", kOne, "checkpoint.save_interval=$"},
      {"--save-retain-interval", kOne, "checkpoint.save_retain_interval=$"},
      {"--async-save", kNone, "checkpoint.async_save=true"},
      {"--most-recent-k", kOne, "checkpoint.keep_last=$"},
      {"--ckpt-step", kOne, "checkpoint.ckpt_step=$"},
      {"--finetune", kNone, "checkpoint.finetune=true"},
      {"--no-load-optim", kNone, "checkpoint.no_load_optim=true"},
      {"--no-load-rng", kNone, "checkpoint.no_load_rng=true"},
      {"--no-save-optim", kNone, "checkpoint.no_save_optim=true"},
      {"--exit-on-missing-checkpoint", kNone, "checkpoint.exit_on_missing_checkpoint=true"},
  };
  return kRows;
}

static const std::vector<Row>& train_rows() {
  static const std::vector<Row> kRows = {
      {"--seq-length", kOne, "train.seq_length=$"},
      {"--encoder-seq-length", kOne, "train.seq_length=$"},
      {"--micro-batch-size", kOne, "train.micro_batch_size=$"},
      {"--global-batch-size", kOne, "train.global_batch_size=$"},
      {"--step-batch-size-schedule", kText, "train.step_batch_size_schedule=$"},
      {"--rampup-batch-size", kThree, "train.rampup_batch_size=$"},
      {"--decrease-batch-size-if-needed", kNone, "train.decrease_batch_size_if_needed=true"},
      {"--train-iters", kOne, "train.train_iters=$"},
      {"--train-samples", kOne, "train.train_samples=$"},
      {"--eval-interval", kOne, "train.eval_interval=$"},
      {"--eval-iters", kOne, "train.eval_iters=$"},
      {"--skip-train", kNone, "train.skip_train=true"},
      {"--full-validation", kNone, "train.full_validation=true"},
      {"--eval-global-batch-size", kOne, "train.eval_global_batch_size=$"},
      {"--log-interval", kOne, "train.log_interval=$"},
      {"--exit-interval", kOne, "train.exit_interval=$"},
      {"--exit-duration-in-mins", kOne, "train.exit_duration_in_mins=$"},
      {"--calculate-per-token-loss", kNone, "train.calculate_per_token_loss=true"},
      {"--label-smoothing", kOne, "train.label_smoothing=$"},
      {"--log-num-zeros-in-grad", kNone, "train.log_num_zeros_in_grad=true"},
      {"--log-params-norm", kNone, "train.log_params_norm=true"},
      {"--tensorboard-dir", kOne, "train.tensorboard_dir=$"},
      {"--tensorboard-log-interval", kOne, "train.tensorboard_log_interval=$"},
      {"--timing-log-level", kOne, "train.timing_log_level=$"},
      {"--cuda-graph-impl", kOne, "cuda_graph_impl=$"},
      {"--cuda-graph-modules", kText, "cuda_graph_modules=$"},
      {"--cuda-graph-scope", kText, "cuda_graph_scope=$"},
      {"--cuda-graph-warmup-steps", kOne, "train.cuda_graph_warmup_steps=$"},
      {"--enable-cuda-graph", kNone, "enable_cuda_graph=true"},
      {"--external-cuda-graph", kNone, "external_cuda_graph=true"},
  };
  return kRows;
}

const std::vector<FlagRow>& model_flag_rows() {
  static const std::vector<FlagRow> kRowsOfModel = [] {
    std::vector<FlagRow> rows = model_rows();
    rows.insert(rows.end(), expert_rows().begin(), expert_rows().end());
    return rows;
  }();
  return kRowsOfModel;
}

const std::vector<FlagRow>& flag_table() {
  static const std::vector<FlagRow> kTable = [] {
    std::vector<FlagRow> all;
    for (const auto* rows : {&model_rows(), &expert_rows(), &parallel_rows(), &optim_rows(), &precision_rows(),
                             &memory_rows(), &data_rows(), &train_rows(), &fork_rows()}) {
      all.insert(all.end(), rows->begin(), rows->end());
    }
    return all;
  }();
  return kTable;
}

const std::vector<const char*>& positive_flags() {
  static const std::vector<const char*> kFlags = {"--ffn-hidden-size",
                                                  "--kv-channels",
                                                  "--num-query-groups",
                                                  "--max-position-embeddings",
                                                  "--vocab-size",
                                                  "--padded-vocab-size",
                                                  "--pad-vocab-size-to",
                                                  "--q-lora-rank",
                                                  "--softmax-scale",
                                                  "--activation-func-clamp-value",
                                                  "--moe-ffn-hidden-size",
                                                  "--moe-intermediate-size",
                                                  "--moe-latent-size",
                                                  "--moe-shared-expert-intermediate-size",
                                                  "--moe-expert-capacity-factor",
                                                  "--expert-tensor-parallel-size",
                                                  "--decoder-first-pipeline-num-layers",
                                                  "--decoder-last-pipeline-num-layers",
                                                  "--microbatch-group-size-per-virtual-pipeline-stage",
                                                  "--max-seqlen-per-dp-cp-rank",
                                                  "--max-seqlen-per-cp-rank",
                                                  "--lr-decay-iters",
                                                  "--lr-decay-samples",
                                                  "--decoupled-lr",
                                                  "--global-batch-size",
                                                  "--eval-global-batch-size"};
  return kFlags;
}

const std::vector<std::pair<const char*, const char*>>& exclusive_flags() {
  static const std::vector<std::pair<const char*, const char*>> kPairs = {
      {"--num-layers", "--encoder-num-layers"},
      {"--seq-length", "--encoder-seq-length"},
      {"--bf16", "--fp16"},
      {"--swiglu", "--squared-relu"},
      {"--swiglu", "--quick-geglu"},
      {"--group-query-attention", "--multi-latent-attention"},
      {"--global-batch-size", "--step-batch-size-schedule"},
      // Megatron-DeepSpeed has a different MoE gate
      {"--deepspeed", "--num-experts"},
  };
  return kPairs;
}

const std::vector<const char*>& defaults() {
  static const std::vector<const char*> kDefaults = {
      "model.family=gpt",
      "model.position_embedding_type=learned_absolute",
      "model.normalization=LayerNorm",
      "model.gated_linear_unit=false",
      "model.add_bias_linear=true",
      "model.untie_embeddings_and_output_weights=false",
      "model.attention_dropout=0.1",
      "model.hidden_dropout=0.1",
      "parallel.overlap_grad_reduce=false",
      "parallel.overlap_param_gather=false",
      "optim.muon_momentum=0.9",
      "data.num_workers=2",
      "train.log_interval=100",
      "train.eval_iters=100",
      "train.eval_interval=0",
  };
  return kDefaults;
}

const std::vector<const char*>& required_keys() {
  static const std::vector<const char*> kRequired = {"model.num_layers",
                                                     "model.hidden_size",
                                                     "model.num_attention_heads",
                                                     "model.max_position_embeddings",
                                                     "train.seq_length",
                                                     "train.micro_batch_size",
                                                     "optim.lr"};
  return kRequired;
}

const std::vector<std::pair<const char*, const char*>>& tokenizers() {
  static const std::vector<std::pair<const char*, const char*>> kTypes = {
      {"NullTokenizer", "none"},
      {"GPT2BPETokenizer", "bpe"},
      {"HuggingFaceTokenizer", "bpe"},
      {"PretrainedFromHF", "bpe"},
      {"SentencePieceTokenizer", "sentencepiece"},
      {"Llama2Tokenizer", "sentencepiece"},
      {"GPTSentencePieceTokenizer", "sentencepiece"},
      {"ByteLevelTokenizer", "bytes"},
  };
  return kTypes;
}

}  // namespace metroplex::megatron

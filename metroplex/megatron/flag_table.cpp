#include "megatron/flags.h"

namespace metroplex::megatron {

using Row = FlagRow;
constexpr Take kNone = Take::kNone, kOne = Take::kOne, kList = Take::kList, kThree = Take::kThree,
               kText = Take::kText;

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
      {"--position-embedding-type", kOne, "model.position_embedding_type=$"},
      {"--use-rotary-position-embeddings", kNone, "model.position_embedding_type=rope"},
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
      {"--beta-fast", kOne, "model.beta_fast=$"},
      {"--beta-slow", kOne, "model.beta_slow=$"},
      {"--mscale", kOne, "model.mscale=$"},
      {"--mscale-all-dim", kOne, "model.mscale_all_dim=$"},
      {"--window-size", kText, "window=$"},
      {"--window-attn-skip-freq", kOne, "model.window_attn_skip_freq=$"},
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
      {"--mtp-num-layers", kOne, "model.mtp_num_layers=$"},
      {"--mtp-loss-scaling-factor", kOne, "model.mtp_loss_scaling_factor=$"},
      {"--normalization", kOne, "model.normalization=$"},
      {"--norm-epsilon", kOne, "model.layernorm_epsilon=$"},
      {"--layernorm-epsilon", kOne, "model.layernorm_epsilon=$"},
      {"--swiglu", kNone, "model.activation=silu;model.gated_linear_unit=true"},
      {"--quick-geglu", kNone, "model.activation=quick_gelu;model.gated_linear_unit=true"},
      {"--squared-relu", kNone, "model.activation=squared_relu"},
      {"--openai-gelu", kNone, "model.activation=gelu_tanh"},
      {"--no-bias-gelu-fusion", kNone, "no_gelu_fusion=true"},
      {"--disable-bias-linear", kNone, "model.add_bias_linear=false"},
      {"--add-qkv-bias", kNone, "model.add_qkv_bias=true"},
      {"--qk-layernorm", kNone, "model.qk_layernorm=true"},
      {"--untie-embeddings-and-output-weights", kNone, "model.untie_embeddings_and_output_weights=true"},
      {"--make-vocab-size-divisible-by", kOne, "model.make_vocab_size_divisible_by=$"},
      {"--vocab-size", kOne, "model.vocab_size=$"},
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
      {"--expert-model-parallel-size", kOne, "parallel.expert_model_parallel_size=$"},
      {"--expert-tensor-parallel-size", kOne, "parallel.expert_tensor_parallel_size=$"},
      {"--sequence-parallel", kNone, "parallel.sequence_parallel=true"},
      {"--use-tp-pp-dp-mapping", kNone, "parallel.order=tp-cp-ep-pp-dp"},
      {"--no-overlap-p2p-communication", kNone, "no_overlap_p2p=true"},
      {"--overlap-grad-reduce", kNone, "parallel.overlap_grad_reduce=true"},
      {"--ddp-bucket-size", kOne, "parallel.ddp_bucket_size=$"},
      {"--use-distributed-optimizer", kNone, "sharded=optim"},
      {"--use-megatron-fsdp", kNone, "fsdp=true"},
      {"--use-custom-fsdp", kNone, "fsdp=true"},
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
      {"--optimizer", kOne, "optim.optimizer=$"},
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
      {"--use-checkpoint-opt-param-scheduler", kNone, "optim.use_checkpoint_opt_param_scheduler=true"},
  };
  return kRows;
}

static const std::vector<Row>& precision_rows() {
  static const std::vector<Row> kRows = {
      {"--bf16", kNone, "bf16=true;precision.params_dtype=bf16"},
      {"--fp16", kNone, "fp16=true;precision.params_dtype=fp16"},
      {"--fp32-residual-connection", kNone, "precision.fp32_residual_connection=true"},
      {"--accumulate-allreduce-grads-in-fp32", kNone, "precision.main_grads_dtype=fp32"},
      {"--grad-reduce-in-bf16", kNone, "precision.main_grads_dtype=params"},
      {"--main-grads-dtype", kOne, "main_grads_dtype=$"},
      {"--loss-scale", kOne, "precision.loss_scale=$"},
      {"--initial-loss-scale", kOne, "precision.initial_loss_scale=$"},
      {"--min-loss-scale", kOne, "precision.min_loss_scale=$"},
      {"--loss-scale-window", kOne, "precision.loss_scale_window=$"},
      {"--hysteresis", kOne, "precision.hysteresis=$"},
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
      {"--recompute-granularity", kOne, "memory.recompute_granularity=$"},
      {"--recompute-activations", kNone, "memory.recompute_granularity=selective"},
      {"--recompute-method", kOne, "memory.recompute_method=$"},
      {"--recompute-num-layers", kOne, "memory.recompute_num_layers=$"},
      {"--recompute-modules", kList, "recompute_modules=$"},
      {"--distribute-saved-activations", kNone, "memory.distribute_saved_activations=true"},
      {"--fine-grained-activation-offloading", kNone, "memory.offload_activations=host"},
      {"--cpu-offloading", kNone, "memory.offload_activations=host"},
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
      {"--dataloader-type", kOne, "data.dataloader_type=$"},
      {"--no-data-sharding", kNone, "data.data_sharding=false"},
      {"--reset-position-ids", kNone, "data.reset_position_ids=true"},
      {"--reset-attention-mask", kNone, "data.reset_attention_mask=true"},
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

// Nothing to set: how the program works anyway, or a choice that it does not have.
static const std::vector<Row>& rows_without_effect() {
  static constexpr const char* kAlways = "it is always so";
  static constexpr const char* kOneWay = "ignored, there is one implementation";
  static constexpr const char* kPython = "ignored, there is no Python here";
  static constexpr const char* kBackend = "ignored, backends are chosen with --backend";
  static constexpr const char* kOwnFormat =
      "ignored, checkpoints have one format of their own (docs/checkpoint_format.md)";
  static constexpr const char* kTimers = "ignored, timers are printed as their minimum and maximum over the ranks";
  static constexpr const char* kCounters = "ignored, random numbers are functions of a position, captured or not";
  static constexpr const char* kNoGraphs = "ignored, generation captures no graphs";
  static const std::vector<Row> kRows = {
      {"--use-mcore-models", kNone, "", kAlways},
      {"--transformer-impl", kOne, "", kOneWay},
      {"--attention-backend", kOne, "", kOneWay},
      {"--use-flash-attn", kNone, "", kOneWay},
      {"--no-masked-softmax-fusion", kNone, "", kOneWay},
      {"--no-bias-swiglu-fusion", kNone, "", kOneWay},
      {"--no-bias-dropout-fusion", kNone, "", kOneWay},
      {"--no-rope-fusion", kNone, "", kOneWay},
      {"--no-persist-layer-norm", kNone, "", kOneWay},
      {"--no-gradient-accumulation-fusion", kNone, "", kOneWay},
      {"--cross-entropy-loss-fusion", kNone, "", kOneWay},
      {"--cross-entropy-fusion-impl", kOne, "", kOneWay},
      {"--attention-softmax-in-fp32", kNone, "", kAlways},
      {"--no-create-attention-mask-in-dataloader", kNone, "", kAlways},
      {"--no-mmap-bin-files", kNone, "", "ignored, datasets are always memory-mapped"},
      {"--num-dataset-builder-threads", kOne, "", "ignored, an index is built by one thread of one rank"},
      {"--exit-signal-handler", kNone, "", kAlways},
      {"--manual-gc", kNone, "", kPython},
      {"--manual-gc-interval", kOne, "", kPython},
      {"--empty-unused-memory-level", kOne, "", "ignored, freed memory is kept"},
      {"--log-throughput", kNone, "", kAlways},
      {"--log-progress", kNone, "", "ignored, no progress.txt is written; train.metrics_file has the same numbers"},
      {"--log-timers-to-tensorboard", kNone, "", kTimers},
      {"--log-validation-ppl-to-tensorboard", kNone, "", kAlways},
      {"--tensorboard-queue-size", kOne, "", "ignored, every point is written at once"},
      {"--ckpt-format", kOne, "", kOwnFormat},
      {"--use-dist-ckpt", kNone, "", kOwnFormat},
      {"--auto-detect-ckpt-format", kNone, "", kOwnFormat},
      {"--no-ckpt-fully-parallel-save", kNone, "", "ignored, every rank writes what it owns"},
      {"--ckpt-fully-parallel-load", kNone, "", "ignored, every rank reads what it needs"},
      {"--local-rank", kOne, "", "ignored, the launcher's environment says it"},
      {"--no-one-logger", kNone, "", kAlways},
      {"--tp-comm-bootstrap-backend", kOne, "", kBackend},
      {"--no-barrier-with-level-1-timing", kNone, "", "ignored, timers set no barriers"},
      {"--timing-log-option", kOne, "", kTimers},
      {"--moe-permute-fusion", kNone, "", kOneWay},
      {"--moe-router-fusion", kNone, "", kOneWay},
      {"--moe-use-grouped-tensor", kNone, "", kOneWay},
      {"--moe-single-grouped-weight", kNone, "", kOneWay},
      {"--moe-single-grouped-bias", kNone, "", kOneWay},
      {"--moe-enable-deepep", kNone, "", kOneWay},
      {"--moe-flex-dispatcher-num-sms", kOne, "", kOneWay},
      {"--moe-deepep-num-sms", kOne, "", kOneWay},
      {"--moe-hybridep-num-sms", kOne, "", kOneWay},
      {"--moe-echo-expert-dispatcher-type", kOne, "", kOneWay},
      {"--moe-use-device-initiated-grouped-gemm", kNone, "",
       "ignored, products always read their sizes on the device"},
      {"--moe-permute-fusion-into-hybridep", kNone, "", kOneWay},
      {"--moe-hybridep-pad-uneven-dispatch-inputs", kNone, "", kOneWay},
      {"--moe-router-padding-for-quantization", kNone, "", "ignored, there are no products in fp8 or fp4"},
      {"--moe-router-padding-for-fp8", kNone, "", "ignored, there are no products in fp8 or fp4"},
      {"--moe-pad-experts-for-cuda-graph-inference", kNone, "", kNoGraphs},
      {"--inference-cuda-graph-scope", kOne, "", kNoGraphs},
      {"--inference-cuda-graph-all-prefills", kNone, "", kNoGraphs},
      {"--inference-cuda-graph-max-tokens", kOne, "", kNoGraphs},
      {"--inference-dynamic-batching-num-cuda-graphs", kOne, "", kNoGraphs},
      {"--decode-only-cuda-graphs", kNone, "", kNoGraphs},
      {"--optimizer-cuda-graph", kNone, "", "ignored, full_iteration captures the optimizer, partial graphs do not"},
      {"--cuda-graph-use-single-mempool", kNone, "",
       "ignored, the graphs of full_iteration share a pool, sets of partial graphs do not"},
      {"--cuda-graph-retain-backward-graph", kNone, "", "ignored, a captured backward keeps nothing of autograd's"},
      {"--te-rng-tracker", kNone, "", kCounters},
      {"--inference-rng-tracker", kNone, "", kCounters},
      {"--moe-per-layer-logging", kNone, "", "ignored, train.log_experts_interval shows every layer"},
  };
  return kRows;
}

const std::vector<FlagRow>& flag_table() {
  static const std::vector<FlagRow> kTable = [] {
    std::vector<FlagRow> all;
    for (const auto* rows : {&model_rows(), &expert_rows(), &parallel_rows(), &optim_rows(), &precision_rows(),
                             &memory_rows(), &data_rows(), &train_rows(), &rows_without_effect()}) {
      all.insert(all.end(), rows->begin(), rows->end());
    }
    return all;
  }();
  return kTable;
}

const std::vector<std::pair<const char*, const char*>>& fixed_flags() {
  static const std::vector<std::pair<const char*, const char*>> kFixed = {
      {"--muon-tp-mode", "duplicated"},
      {"--muon-tp-mode", "distributed"},
      {"--muon-scalar-optimizer", "adam"},
      {"--outer-dp-sharding-strategy", "no_shard"},
  };
  return kFixed;
}

const std::vector<std::pair<const char*, const char*>>& removed_flags() {
  static const std::vector<std::pair<const char*, const char*>> kRemoved = {
      {"--batch-size", "use --micro-batch-size"},
      {"--warmup", "use --lr-warmup-fraction"},
      {"--model-parallel-size", "use --tensor-model-parallel-size"},
      {"--checkpoint-activations", "use --recompute-activations"},
  };
  return kRemoved;
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
      {"SentencePieceTokenizer", "sentencepiece"},
      {"Llama2Tokenizer", "sentencepiece"},
      {"GPTSentencePieceTokenizer", "sentencepiece"},
      {"ByteLevelTokenizer", "bytes"},
  };
  return kTypes;
}

}  // namespace metroplex::megatron

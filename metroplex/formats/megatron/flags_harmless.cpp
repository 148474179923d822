// Megatron flags that do not affect weights, data and losses of a GPT here. They are accepted without a note.
#include "megatron/flags.h"

#include <algorithm>
#include <sstream>

namespace metroplex::megatron {

namespace {

constexpr FlagGroup kGroups[] = {
    {"Megatron never reads it", "--onnx-safe= --sample-rate= --short-seq-prob="},
    {"another implementation of the same function",
     "--DDP-impl= --apply-query-key-layer-scaling --attention-backend= --attention-softmax-in-fp32 "
     "--batch-invariant-backend= --batch-invariant-mode --cross-entropy-fusion-impl= --cross-entropy-loss-fusion "
     "--cuda-graph-dynamic-microbatches --dense-grouped-gemm --disable-jit-fuser --enable-experimental "
     "--enable-routing-replay --fallback-to-eager-attn --flash-attention-version= --fused-residual-rmsnorm "
     "--megatron-fsdp-version= --mla-down-proj-fusion --moe-enable-routing-replay --moe-extended-tp "
     "--moe-permute-fusion --moe-permute-fusion-into-hybridep --moe-router-fusion "
     "--moe-single-grouped-bias --moe-single-grouped-weight "
     "--moe-use-grouped-tensor --moe-use-legacy-grouped-gemm --mtp-standalone --muon-use-syrk "
     "--no-bias-dropout-fusion --no-bias-swiglu-fusion "
     "--no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-mmap-bin-files --no-persist-layer-norm "
     "--no-query-key-layer-scaling --no-rope-fusion --no-scaled-masked-softmax-fusion --optimizer-cuda-graph "
     "--scaled-upper-triang-masked-softmax-fusion= --symmetric-ar-type= --transformer-impl= --use-flash-attn "
     "--use-fused-weighted-squared-relu --use-grouped-gemm-for-dense-mlp --use-grouped-gemm-for-shared-expert "
     "--use-legacy-models --use-mcore-models --use-te-activation-func --use-transformer-engine-op-fuser"},
    {"all tokens of an evaluation have the same weight", "--eval-micro-batch-size="},
    {"format, speed and copies of checkpoints",
     "--async-ckpt-cpu-priority= --async-ckpt-io-priority= --async-ckpt-use-cpu-shm --async-strategy= "
     "--auto-detect-ckpt-format --ckpt-assume-constant-structure --ckpt-convert-update-legacy-dist-opt-format "
     "--ckpt-drop-redundant-extra-state --ckpt-format= --ckpt-fully-parallel-load "
     "--ckpt-fully-parallel-load-exchange-algo= --ckpt-fully-parallel-load-per-rank-objects "
     "--ckpt-fully-parallel-load-process-group= --ckpt-fully-parallel-save "
     "--ckpt-fully-parallel-save-process-group= --ckpt-pg-tensors-cache-create --ckpt-pg-tensors-cache-path= "
     "--disable-ckpt-load-validate-sharding-integrity --disable-save-tokenizer-assets --dist-ckpt-format= "
     "--dist-ckpt-optim-fully-reshardable --dist-ckpt-save-pre-mcore-014 --dist-ckpt-workers= "
     "--distrib-optim-fully-reshardable-mem-efficient --no-ckpt-fully-parallel-save "
     "--no-ckpt-load-validate-sharding-integrity --no-save-rng --no-save-tokenizer-assets "
     "--non-persistent-ckpt-type= --non-persistent-global-ckpt-dir= --non-persistent-local-ckpt-algo= "
     "--non-persistent-local-ckpt-dir= --non-persistent-save-interval= --replication --replication-factor= "
     "--replication-jump= --use-dist-ckpt --use-persistent-ckpt-worker --verify-integrity"},
    {"a checkpoint without some of the weights is an error",
     "--disable-strict-fsdp-dtensor-load --dist-ckpt-strictness= --no-strict-fsdp-dtensor-load"},
    {"how a run is stopped, checked and restarted",
     "--adlr-autoresume --adlr-autoresume-interval= --disable-msc --enable-msc --exit-signal-handler "
     "--exit-signal-handler-for-dataloader --exit-signal-handler-for-training --exit-signal= "
     "--fault-injector-delay-start-iteration= --fault-injector-fault-delay= --fault-injector-fault-probabilities= "
     "--fault-injector-fault-types= --fault-injector-mtti-seconds= --fault-injector-num-ranks= "
     "--fault-injector-offset-seconds= --fault-injector-ranks= --fault-injector-seed= "
     "--inprocess-active-world-size= --inprocess-barrier-timeout= --inprocess-completion-timeout= "
     "--inprocess-empty-cuda-cache --inprocess-granularity= --inprocess-hard-timeout= "
     "--inprocess-heartbeat-interval= --inprocess-heartbeat-timeout= --inprocess-last-call-wait= "
     "--inprocess-max-iterations= --inprocess-monitor-process-interval= --inprocess-monitor-thread-interval= "
     "--inprocess-progress-watchdog-interval= --inprocess-restart --inprocess-soft-timeout= "
     "--inprocess-termination-grace-time= --rerun-mode="},
    {"how indices are built",
     "--dataloader-defer-npy-index-mmap --dataloader-fast-cache-load --mmap-warmup --num-dataset-builder-threads= "
     "--object-storage-cache-path= --per-dataset-sequences-path= --s3-cache-path="},
    {"how ranks communicate",
     "--create-all-gather-group --ddp-num-buckets= --ddp-pad-buckets-for-high-nccl-busbw "
     "--defer-embedding-wgrad-compute --delay-param-gather --disable-align-grad-reduce "
     "--disable-gloo-process-groups --disable-symmetric-registration --disable-tp-comm-bulk-dgrad "
     "--disable-tp-comm-bulk-wgrad --disable-tp-comm-overlap-ag --disable-tp-comm-overlap-rs "
     "--disable-tp-comm-split-ag --disable-tp-comm-split-rs --distributed-timeout-seconds-after-init= "
     "--fsdp-db-use-persist-buf-on-alloc-fail --fsdp-double-buffer --fsdp-manual-registration "
     "--high-priority-a2a-comm-stream --high-priority-stream-groups+ --local-rank= "
     "--megatron-fsdp-cache-param-bucket-views --megatron-fsdp-enable-fine-grained-param-gather "
     "--megatron-fsdp-max-pool-double-buffer --megatron-fsdp-prefetch-recompute-forward-weights "
     "--moe-deepep-num-sms= --moe-enable-deepep --moe-flex-dispatcher-num-sms= --moe-hybridep-num-blocks-permute= "
     "--moe-hybridep-num-blocks-unpermute= --moe-hybridep-num-sms-preprocessing= --moe-hybridep-num-sms= "
     "--moe-hybridep-pad-uneven-dispatch-inputs --moe-hybridep-pad-variable-tokens --moe-ncclep-static-shape "
     "--moe-ncclep-use-symm-mem --moe-ncclep-zero-copy --nccl-communicator-config-path= --no-align-grad-reduce "
     "--no-async-tensor-model-parallel-allreduce --no-contiguous-buffers-in-local-ddp --no-delay-grad-reduce "
     "--no-scatter-gather-tensors-in-pipeline --no-tp-comm-bulk-dgrad --no-tp-comm-bulk-wgrad "
     "--no-tp-comm-overlap-ag --no-tp-comm-overlap-rs --no-tp-comm-split-ag --no-tp-comm-split-rs "
     "--no-use-layer-wise-param-layout --overlap-cpu-optimizer-d2h-h2d "
     "--overlap-dispatch-backward-with-experts-wgrad "
     "--overlap-p2p-communication-warmup-flush --overlap-param-gather-with-optimizer-step "
     "--pipeline-model-parallel-comm-backend= --refit-method= --sharp-enabled-group= "
     "--suggested-communication-unit-size= --tp-comm-bootstrap-backend= --tp-comm-overlap --tp-comm-overlap-cfg= "
     "--tp-comm-overlap-rs-dgrad --train-sync-interval= --use-contiguous-buffers-in-ddp "
     "--use-layer-wise-param-layout --use-nccl-ub --use-ring-exchange-p2p --use-sharp --wgrad-deferral-limit="},
    {"how text becomes ids; training reads ids",
     "--disable-tokenizer-sentencepiece-ignore-extra-whitespaces --legacy-tokenizer "
     "--no-tokenizer-sentencepiece-ignore-extra-whitespaces --tokenizer-hf-include-special-tokens "
     "--tokenizer-hf-no-include-special-tokens --tokenizer-hf-no-use-fast --tokenizer-hf-use-fast "
     "--trust-remote-code --use-gigatoken"},
    {"logs, profiles and debug output",
     "--app-tag-run-name= --app-tag-run-version= --calc-ft-timeouts "
     "--check-weight-hash-across-dp-replicas-interval= --config-logger-dir= "
     "--disable-flight-recorder-dump-on-timeout --disable-flight-recorder-extra-dump-on-exec "
     "--disable-flight-recorder-include-only-active --disable-log-loss-scale-to-tensorboard "
     "--disable-straggler-on-startup --dump-param-to-param-group-map= --enable-ft-package --enable-one-logger "
     "--flight-recorder-dump-path= --flight-recorder-include-stack-trace --flight-recorder-trace-buffer-size= "
     "--ft-num-warmup-iters= --gpu-sniff-test-interval= --log-batch-size-to-tensorboard --log-device-memory-used "
     "--log-energy --log-max-attention-logit --log-memory-interval= --log-memory-to-tensorboard "
     "--log-moe-overload-factor --log-progress --log-straggler --log-throughput --log-timers-to-tensorboard "
     "--log-validation-ppl-to-tensorboard --log-world-size-to-tensorboard --logging-level= --logits-save-dir= "
     "--memory-snapshot-path= --moe-per-layer-logging --moe-routing-trace-capture-hidden-states "
     "--moe-routing-trace-capture-logits --moe-routing-trace-dump-weights --moe-routing-trace-max-training-iters= "
     "--moe-routing-trace-path= --no-barrier-with-level-1-timing --no-flight-recorder-dump-on-timeout "
     "--no-flight-recorder-extra-dump-on-exec --no-flight-recorder-include-only-active "
     "--no-log-learnig-rate-to-tensorboard --no-log-loss-scale-to-tensorboard --no-one-logger --nvtx-ranges "
     "--one-logger-async --one-logger-entity= --one-logger-project= --one-logger-run-name= --otel-enabled "
     "--otel-service-name= --otel-span-groups= --profile --profile-ranks+ --profile-step-end= "
     "--profile-step-start= --pytorch-profiler-collect-callstack --pytorch-profiler-collect-chakra "
     "--pytorch-profiler-collect-shapes --record-memory-history --record-shapes --run-workload-inspector-server "
     "--save-activations-interval= --save-dgrads-interval= --save-params-interval= "
     "--save-tokens-per-expert-interval= --save-wgrads-interval= --straggler-ctrlr-port= "
     "--straggler-minmax-count= --tensorboard-queue-size= --test-mode --timing-log-option= --use-pytorch-profiler "
     "--validation-set-names+ --wandb-entity= --wandb-exp-name= --wandb-project= --wandb-save-dir="},
    {"memory only",
     "--activation-offload-fraction= --chunked-optimizer-state-offload --cpu-offloading-retain-pinned-cpu-buffers "
     "--delay-offload-until-cuda-graph --delta-offload-bytes-across-pp-ranks= "
     "--disable-clone-scatter-output-in-embedding --disable-grad-buffers-cpu-backup --disable-manual-gc-eval "
     "--disable-param-buffers-cpu-backup --empty-unused-memory-level= --ep-overlap-early-attn-memory-release "
     "--fine-grained-offloading-max-inflight-offloads= --init-model-with-meta-device --manual-gc "
     "--manual-gc-interval= --min-offloaded-tensor-size= --mlp-chunks-for-training= "
     "--no-clone-scatter-output-in-embedding --no-manual-gc-eval --no-pin-cpu-grads --no-pin-cpu-params "
     "--offload-modules+ --offload-optimizer-states --optimizer-offload-fraction= "
     "--optimizer-state-offload-chunk-size-mb= --optimizer-state-offload-fraction= "
     "--use-torch-optimizer-for-cpu-offload"},
    {"read only by ModelOpt",
     "--enable-gpt-oss --export-default-te-spec --export-force-local-attention --export-kv-cache-quant= "
     "--export-legacy-megatron --export-model-type= --export-moe-apply-probs-on-input --export-offline-model "
     "--export-qk-l2-norm --export-quant-cfg= --export-real-quant-cfg= --export-te-mcore-model "
     "--freeze-base-for-mtp --qad-train-target="},
    {"read only by inference",
     "--decode-only-cuda-graphs --disable-chunked-prefill --enable-chunked-prefill "
     "--flash-decode --inference-batch-times-seqlen-threshold= --inference-coordinator-port= "
     "--inference-cuda-graph-all-prefills --inference-cuda-graph-max-tokens= --inference-cuda-graph-scope= "
     "--inference-disable-ep-consensus --inference-disable-triton-nvls-kernels --inference-dynamic-batching "
     "--inference-dynamic-batching-async-sched-mode= --inference-dynamic-batching-block-size= "
     "--inference-dynamic-batching-buffer-guaranteed-fraction= "
     "--inference-dynamic-batching-buffer-overflow-factor= --inference-dynamic-batching-buffer-size-gb= "
     "--inference-dynamic-batching-chunk-size= --inference-dynamic-batching-cuda-graph-max-tokens= "
     "--inference-dynamic-batching-cuda-graph-mixed-prefill-count= "
     "--inference-dynamic-batching-cuda-graph-sizing-distribution= --inference-dynamic-batching-logprobs-mode= "
     "--inference-dynamic-batching-mamba-memory-ratio= --inference-dynamic-batching-max-requests-override= "
     "--inference-dynamic-batching-max-requests= --inference-dynamic-batching-max-tokens-override= "
     "--inference-dynamic-batching-max-tokens= --inference-dynamic-batching-num-cuda-graphs= "
     "--inference-dynamic-batching-paused-buffer-size-gb= --inference-dynamic-batching-prefix-caching "
     "--inference-dynamic-batching-prefix-caching-coordinator-policy= "
     "--inference-dynamic-batching-prefix-caching-eviction-policy= "
     "--inference-dynamic-batching-prefix-caching-mamba-gb= "
     "--inference-dynamic-batching-prefix-caching-routing-alpha= --inference-dynamic-batching-sampling-backend= "
     "--inference-dynamic-batching-track-generated-token-events "
     "--inference-dynamic-batching-track-paused-request-events --inference-dynamic-batching-unified-memory-level= "
     "--inference-fuse-tp-communication --inference-grouped-gemm-backend= --inference-logging-step-interval= "
     "--inference-max-batch-size= --inference-max-requests= --inference-max-seq-length= "
     "--inference-moe-disable-fused-quant-kernels --inference-moe-token-dispatcher-type= --inference-rng-tracker "
     "--inference-shards= --inference-text-gen-server-logging --inference-use-synchronous-zmq-collectives "
     "--inference-wandb-logging --initialize-socket-comms --mamba-inference-conv-states-dtype= "
     "--mamba-inference-ssm-states-dtype= --max-tokens-to-oom= --mlp-chunks-for-prefill= "
     "--moe-pad-experts-for-cuda-graph-inference --nccl-all-reduce-for-prefill "
     "--no-inference-disable-ep-consensus --no-inference-dynamic-batching-prefix-caching "
     "--no-inference-text-gen-server-logging --no-inference-use-synchronous-zmq-collectives "
     "--no-inference-wandb-logging --num-speculative-tokens= --use-legacy-static-engine "
     "--use-same-sampling-seed-across-dp-ranks"},
    {"read only by other models",
     "--bert-embedder-type= --bert-load= --bert-no-binary-head --biencoder-projection-dim= "
     "--biencoder-shared-query-context-model --block-data-path= --classes-fraction= --data-per-class-fraction= "
     "--dino-bottleneck-size= --dino-freeze-last-layer= --dino-head-hidden-size= --dino-local-crops-number= "
     "--dino-local-img-size= --dino-norm-last-layer --dino-teacher-temp= --dino-warmup-teacher-temp-epochs= "
     "--dino-warmup-teacher-temp= --disable-mamba-mem-eff-path --embedding-path= --evidence-data-path= "
     "--faiss-use-gpu --gdp-cutedsl-kernel --gdp-num-chunk-states-to-recompute= --gdp-num-householder= "
     "--head-lr-mult= --ict-head-size= --ict-load= --img-dim= --img-h= --img-w= --indexer-batch-size= "
     "--indexer-log-interval= --iter-per-epoch= --mamba-training-ssm-states-dtype= --mask-factor= --mask-prob= "
     "--mask-type= "
     "--mtp-hybrid-override-pattern= --num-channels= --num-classes= --output-bert-embeddings --patch-dim= "
     "--query-in-block-prob= --report-topk-accuracies+ --retriever-report-topk-accuracies+ "
     "--retriever-score-scaling --retriever-seq-length= --retro-attention-gate= --retro-cyclic-train-iters= "
     "--retro-encoder-attention-dropout= --retro-encoder-hidden-dropout= --retro-encoder-layers= "
     "--retro-no-verify-neighbor-count --retro-num-neighbors= --retro-num-retrieved-chunks= --retro-project-dir= "
     "--retro-return-doc-ids --retro-workdir= --swin-backbone-type= --titles-data-path= --use-one-sent-docs "
     "--vision-backbone-type= --vision-pretraining --vision-pretraining-type="},
    {"rounding, or another generator of the same distribution",
     "--ddp-average-in-collective --disable-bf16-reduced-precision-matmul --muon-fp32-matmul-prec= "
     "--no-gradient-reduce-div-fusion "
     "--te-rng-tracker"},
    {"read only with --ckpt-convert-format", "--ckpt-convert-save="},
    {"read only with --dynamic-context-parallel or --sequence-packing-scheduler",
     "--min-dynamic-context-parallel-size= --pad-packed-seq-alignment= --thd-max-packed-sequences= "
     "--thd-tail-padding-policy="},
    {"read only with --enable-mhc-connections",
     "--mhc-init-gating-factor= --mhc-num-residual-streams= --mhc-recompute-layer-num= --mhc-sinkhorn-iterations= "
     "--num-residual-streams= --use-fused-mhc"},
    {"read only with --error-injection-rate", "--error-injection-type="},
    {"read only with --experimental-attention-variant",
     "--csa-compress-ratios= --csa-compress-rotary-base= --csa-dense-mode --csa-window-size= "
     "--disable-dsa-indexer-rotate-activation --disable-dsa-indexer-scoring-relu --dsa-indexer-head-dim= "
     "--dsa-indexer-k-norm-epsilon= --dsa-indexer-k-norm-fp32 --dsa-indexer-loss-coeff= --dsa-indexer-n-heads= "
     "--dsa-indexer-rope-interleaved --dsa-indexer-skip-topk-offset= --dsa-indexer-topk-freq= --dsa-indexer-topk= "
     "--dsa-indexer-use-sparse-loss --dsa-kernel-backend= --gdn-conv-pad-alignment= "
     "--gdn-pre-gated-delta-rule-fusion --linear-cp-mode= "
     "--no-dsa-indexer-rotate-activation --no-dsa-indexer-scoring-relu --no-dsa-kernel-fusion --o-groups= "
     "--o-lora-rank="},
    {"read only with --export-kd-teacher-load",
     "--export-kd-cfg= --export-kd-teacher-ckpt-format= --export-kd-teacher-model-config="},
    {"read only with --fim-data",
     "--fim-eod-token= --fim-fragment-rate= --fim-middle-token= --fim-no-prefix= --fim-pad-token= "
     "--fim-prefix-token= --fim-rate= --fim-split-sample= --fim-spm-rate= --fim-suffix-token="},
    {"read only with --finetune-hf-dataset", "--finetune-data-files+ --finetune-data-split="},
    {"storage and transport of rounded parameters: here they stay in params_dtype",
     "--disable-stream-ckpt-dequant --fp4-param-gather --fp8-interval= --keep-fp8-transpose-cache "
     "--keep-fp8-transpose-cache-when-using-custom-fsdp --no-stream-ckpt-dequant "
     "--reuse-grad-buf-for-mxfp8-param-ag"},
    {"products here need no multiples of 16 or 32 rows",
     "--moe-router-padding-for-fp8 --moe-router-padding-for-quantization"},
    {"read only with --logits-load-dir",
     "--logits-load-decode-threads= --logits-load-ignore-errors --logits-load-kd-loss-alpha= "
     "--logits-load-msc-prefetch-depth= --logits-load-prefetch-factor="},
    {"read only with --logits-save-dir",
     "--logits-save-dtype= --logits-save-top-k= --logits-save-top-p-min-k= --logits-save-top-p="},
    {"read only with --moe-router-load-balancing-type quantile_balancing", "--moe-router-quantile-balancing-ema="},
    {"read only with --moe-use-upcycling", "--moe-upcycling-granularity="},
    {"read only with --perform-rl-step",
     "--grpo-clamp-eps-lower= --grpo-clamp-eps-upper= --grpo-default-temperature= --grpo-default-top-p= "
     "--grpo-entropy-term-weight= --grpo-filter-groups-with-same-reward --grpo-group-size= --grpo-iterations= "
     "--grpo-kl-beta= --grpo-prompts-per-step= --langrl-env-config= --langrl-external-server "
     "--langrl-inference-server-conversation-template= --langrl-inference-server-type= "
     "--no-rl-inference-logprobs-is-correction --no-rl-offload-inference-model-weights-when-idle "
     "--no-rl-partial-rollouts --no-rl-persist-cuda-graphs --no-rl-skip-bos-token --no-rl-training-cuda-graphs "
     "--no-rl-use-sequence-packing --no-rl-verify-model-weights-swap --rl-calculate-intra-group-similarity "
     "--rl-consumption-granularity= --rl-default-temperature= --rl-default-top-k= --rl-default-top-p= "
     "--rl-durable-rollout-bank --rl-generation-batch-size= --rl-generation-lag= "
     "--rl-importance-sampling-truncation-coef= --rl-inference-expert-model-parallel-size= "
     "--rl-inference-expert-tensor-model-parallel-size= --rl-inference-logprobs-is-correction "
     "--rl-inference-model-unified-memory-level= --rl-inference-parsers+ "
     "--rl-inference-pipeline-model-parallel-size= --rl-inference-tensor-model-parallel-size= "
     "--rl-kv-cache-management-mode= --rl-max-inflight-requests= --rl-num-parallel-generation-batches= "
     "--rl-num-parallel-generations= --rl-offload-inference-model-weights-when-idle "
     "--rl-offload-kv-cache-during-training --rl-offload-optimizer-during-inference "
     "--rl-parallel-generation-tasks= --rl-partial-rollouts --rl-persist-cuda-graphs --rl-profile "
     "--rl-profile-dir= --rl-prompts-per-eval= --rl-remove-kv-cache-during-training --rl-reset-cuda-graphs "
     "--rl-rollout-bank-dir= --rl-rollout-bank-max-bytes= --rl-sequence-packing-algo= "
     "--rl-sequence-packing-bin-size= --rl-sequence-packing-max-sequences-per-bin= --rl-skip-bos-token "
     "--rl-submission-granularity= --rl-training-cuda-graphs --rl-use-sequence-packing "
     "--rl-verify-model-weights-swap"},
    {"read only with --position-embedding-type mrope", "--mrope-interleaved --mrope-section+"},
    {"read only with --position-embedding-type relative",
     "--relative-attention-max-distance= --relative-attention-num-buckets="},
    {"read only with --qk-clip", "--qk-clip-alpha= --qk-clip-threshold="},
    {"read only with --sft", "--chat-template= --sft-mock-dataset-config-json= --sft-tokenizer-prompt-format="},
    {"read only with --tensor-parallel-num-weight-shards",
     "--gtp-expert-remat-nccl-ub --gtp-remat-nccl-ub --gtp-remat-opt-in-modules+ "
     "--gtp-remat-reduce-scatter-with-fp32-accumulation"},
    {"read only with --tokenizer-type TikTokenizer", "--tiktoken-num-special-tokens= --tiktoken-pattern="},
    {"read only with --use-checkpoint-args",
     "--disable-use-tokenizer-model-from-checkpoint-args --no-use-tokenizer-model-from-checkpoint-args "
     "--use-mp-args-from-checkpoint-args"},
    {"read only with --use-kitchen-attention", "--kitchen-attention-backend="},
    {"read only with --use-mup",
     "--mup-attn-scale-power= --mup-base-head-dim= --mup-base-hidden-size= --mup-embedding-mult= "
     "--mup-output-mult= --mup-width-mult="},
    {"read only with --use-varlen-dataset", "--varlen-mock-dataset-config-json= --varlen-sbhd-validation"},
};

// Flags that are accepted only with these values.
constexpr FlagGroup kFixedValues[] = {
    {"context-parallel groups of variable size", "--cp-partition-mode=zigzag"},
    {"format of the index files", "--data-impl=infer|mmap"},
    {"encoder stages of a T5", "--encoder-pipeline-model-parallel-size=0"},
    {"encoder stages of a T5", "--encoder-tensor-model-parallel-size=0"},
    {"injects wrong results", "--error-injection-rate=0"},
    {"share of attention layers in a hybrid model", "--hybrid-attention-ratio=0.0|0"},
    {"share of MLP layers in a hybrid model", "--hybrid-mlp-ratio=0.0|0"},
    {"format in which gradients are reduced", "--megatron-fsdp-grad-comm-dtype=auto|fp32"},
    {"format of the main parameters with FSDP", "--megatron-fsdp-main-params-dtype=fp32"},
    {"samples to build for each dataset of a blend, and so their order", "--mid-level-dataset-surplus=0.005"},
    {"another recipe for 4 bits", "--fp4-recipe=nvfp4"},
    {"optimizer of the parameters that Muon does not update", "--muon-scalar-optimizer=adam"},
    {"blockwise orthogonalizes shards, which is another update", "--muon-tp-mode=distributed|duplicated"},
    {"masks the loss at an id", "--null-tokenizer-pad-id=-1"},
    {"also shards over the outer data-parallel ranks", "--outer-dp-sharding-strategy=no_shard"},
    {"layers of a custom specification", "--spec=local"},
    {"skips the evaluations before an iteration", "--start-eval-at-iter=0"},
    {"ids after those of the tokenizer", "--vocab-extra-ids=0"},
};

HarmlessFlag read_flag(const std::string& word, const char* reason) {
  const size_t end = word.find_first_of("=+");
  HarmlessFlag flag{word.substr(0, end), ArgumentCount::kNone, reason, {}};
  if (end == std::string::npos) return flag;
  flag.take = word[end] == '+' ? ArgumentCount::kList : ArgumentCount::kOne;
  std::istringstream values(word.substr(end + 1));
  for (std::string value; std::getline(values, value, '|');) flag.only.push_back(value);
  return flag;
}

template <class Groups>
void append(const Groups& groups, std::vector<HarmlessFlag>& flags) {
  for (const FlagGroup& group : groups) {
    std::istringstream words(group.flags);
    for (std::string word; words >> word;) flags.push_back(read_flag(word, group.reason));
  }
}

}  // namespace

const std::vector<HarmlessFlag>& harmless_flags() {
  static const std::vector<HarmlessFlag> kFlags = [] {
    std::vector<HarmlessFlag> flags;
    append(kGroups, flags);
    append(kFixedValues, flags);
    return flags;
  }();
  return kFlags;
}

const HarmlessFlag* find_harmless(const std::string& flag) {
  static const std::vector<HarmlessFlag> kFlags = [] {
    std::vector<HarmlessFlag> flags = harmless_flags();
    append(fork_harmless(), flags);
    return flags;
  }();
  const auto found =
      std::find_if(kFlags.begin(), kFlags.end(), [&](const HarmlessFlag& known) { return known.flag == flag; });
  return found == kFlags.end() ? nullptr : &*found;
}

}  // namespace metroplex::megatron

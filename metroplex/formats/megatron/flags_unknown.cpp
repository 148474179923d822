// Refused flags and programs: the reason and the alternative.
#include "megatron/flags.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"

namespace metroplex::megatron {

namespace {

struct Reason {
  const char* text;
  const char* flags;
};

constexpr Reason kNotImplemented[] = {
    {"Megatron also rejects it", "--cache-mla-latents --moe-token-dropping"},
    {"Xavier initialization", "--init-method-xavier-uniform"},
    {"a ModelOpt model", "--modelopt-enabled"},
    {"a stage with only the embedding", "--standalone-embedding-stage"},
    {"a different attention", "--linear-attention-type"},
    {"a different order of rows in the first matrix of the experts",
     "--moe-mlp-glu-interleave-size --moe-shared-expert-glu-interleave-size"},
    {"attention within documents", "--dataloader-inter-document-masking"},
    {"biases the router", "--moe-router-force-biased"},
    {"casts the embedding to fp32", "--embedding-weights-in-fp32"},
    {"changes the vocabulary and its special ids", "--tiktoken-special-tokens --tokenizer-special-tokens"},
    {"changes the weights of a blend", "--renormalize-blend-weights"},
    {"context-parallel groups of variable size", "--dynamic-context-parallel --sequence-packing-scheduler"},
    {"stops gradients between the prediction modules and the model", "--mtp-detach-heads"},
    {"shards weights over more ranks, which changes the data-parallel size",
     "--expert-tensor-parallel-num-weight-shards --tensor-parallel-num-weight-shards"},
    {"data from a list in a file", "--data-args-path --per-split-data-args-path"},
    {"distillation from saved logits", "--logits-load-dir"},
    {"distillation from a teacher", "--export-kd-teacher-load"},
    {"each data-parallel rank starts with different weights", "--data-parallel-random-init"},
    {"encoder stages of a T5", "--pipeline-model-parallel-split-rank"},
    {"ends a run at each phase and restarts the data count", "--phase-transition-iterations"},
    {"ends or restarts a run at a loss spike", "--check-for-spiky-loss"},
    {"fill-in-the-middle data", "--fim-data"},
    {"format in which gradients are reduced", "--fp32-allreduce"},
    {"format in which gradients of some parameters are accumulated",
     "--ddp-param-name-patterns-for-fp32-local-accumulation"},
    {"gates the output of attention", "--head-wise-attn-gate"},
    {"end-of-document id, which affects masks and losses", "--null-tokenizer-eod-id"},
    {"instruction-tuning data", "--finetune-hf-dataset --sft --use-varlen-dataset"},
    {"iteration and data position of a resumed run", "--override-ckpt-iteration"},
    {"other kinds of layers", "--heterogeneous-layers-config-encoded-json --heterogeneous-layers-config-path"},
    {"layers of the decoder of a T5", "--decoder-num-layers"},
    {"another program creates the process groups", "--lazy-mpu-init"},
    {"legacy models add the residual after the norm; Megatron Core ignores it",
     "--apply-residual-connection-post-layernorm"},
    {"length of the decoder of a T5", "--decoder-seq-length"},
    {"library and class of the tokenizer", "--tokenizer-metadata"},
    {"loads checkpoints of another library", "--load-model-opt-format"},
    {"losses in fp16", "--fp16-lm-cross-entropy"},
    {"main parameters of a checkpoint", "--load-main-params-from-ckpt"},
    {"creates experts from a dense checkpoint", "--moe-use-upcycling"},
    {"masks the loss at tokens that share the id of the padding", "--allow-ambiguous-pad-tokens"},
    {"maximal update parametrization: different initialization and learning rates", "--use-mup"},
    {"mixes the inputs of the prediction modules", "--mtp-hsm"},
    {"no communication: every rank trains its own model", "--fake-process-group"},
    {"nothing is trained", "--freeze-all-layers"},
    {"one set of weights for all prediction modules", "--mtp-use-repeated-layer"},
    {"only converts a checkpoint and exits", "--ckpt-convert-format"},
    {"own quantizers", "--fp8-quantizer-factory --fp4-quantizer-factory"},
    {"quantizes modules",
     "--kitchen-config-file --kitchen-recipe-number --te-precision-config-file --use-kitchen-attention"},
    {"reinforcement learning", "--perform-rl-step"},
    {"rescales the query and key weights after a step", "--qk-clip"},
    {"residual streams (mHC)", "--enable-hyper-connections --enable-mhc-connections"},
    {"retrieval-enhanced model", "--retro-add-retriever"},
    {"rotary base per layer", "--rotary-base-per-layer"},
    {"routes by a hash of the token", "--moe-n-hash-layers"},
    {"routes to the experts of a few ranks", "--moe-router-topk-limited-devices"},
    {"rows of the embedding", "--disable-pad-vocab-size --no-pad-vocab-size"},
    {"also shards over the outer data-parallel ranks", "--enable-full-sharding-in-hsdp"},
    {"skips iterations", "--iterations-to-skip --result-rejected-tracker-filename"},
    {"special tokens of the tokenizer", "--tokenizer-sentencepiece-legacy"},
    {"standard deviation of the embedding, which then also has no weight decay", "--embedding-init-method-std"},
    {"takes the model from a checkpoint", "--use-checkpoint-args"},
    {"the whole configuration is in a YAML file", "--yaml-cfg"},
    {"weights start uninitialized", "--no-initialization"},
    {"weights to start from", "--pretrained-checkpoint"},
};

// Removed flags of Megatron, and flags of its forks.
constexpr Reason kReplacements[] = {
    {"removed from Megatron; use --lr-warmup-fraction", "--warmup"},
    {"removed from Megatron; use --micro-batch-size", "--batch-size"},
    {"removed from Megatron; use --tensor-model-parallel-size", "--model-parallel-size"},
    {"use --normalization RMSNorm", "--use-rms-norm --use-rmsnorm --rms-norm"},
    {"use --untie-embeddings-and-output-weights", "--no-tie-embed-logits --untie-embeddings --no-tie-embeddings"},
    {"use --group-query-attention --num-query-groups N", "--num-attention-heads-kv --num-kv-heads --n-head-kv"},
    {"use --rotary-base", "--rope-theta"},
    {"linear scaling in Megatron-LLM; use --rotary-seq-len-interpolation-factor", "--rope_scaling_factor"},
    {"use --window-size N,0", "--sliding-window --sliding-window-size"},
    {"use --vocab-size and --make-vocab-size-divisible-by 1", "--extra-vocab-size"},
    {"use --moe-shared-expert-intermediate-size", "--n-shared-experts"},
    {"use --moe-layer-freq", "--first-k-dense-replace"},
    {"use --moe-aux-loss-coeff", "--moe-loss-coeff"},
    {"use --expert-model-parallel-size", "--moe-expert-parallel-size"},
    {"use --pipeline-model-parallel-size", "--pipe-parallel-size"},
    {"use --swiglu and --ffn-hidden-size, which is 4 * hidden_size in Megatron-LLM; --swiglu alone derives 8/3",
     "--glu-activation"},
    {"counts tokens, one iteration late; use --lr-warmup-samples", "--lr-warmup-tokens"},
    {"counts tokens, one iteration late; use --lr-decay-samples", "--lr-decay-tokens"},
    {"counts tokens; use --train-samples", "--train-tokens"},
    {"the settings in this file are not read; pass them as flags instead", "--deepspeed-config"},
};

template <class Reasons>
const char* find_reason(const Reasons& reasons, const std::string& flag) {
  for (const Reason& reason : reasons) {
    std::istringstream flags(reason.flags);
    for (std::string name; flags >> name;) {
      if (name == flag) return reason.text;
    }
  }
  return nullptr;
}

// Returns the words of a program's name: "tools/pretrain_gpt.py" has tools, pretrain, gpt, py.
std::vector<std::string> name_words(const std::string& name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == '/' || c == '_' || c == '.' || c == '-') words.emplace_back();
    else words.back() += c;
  }
  return words;
}

bool has_word(const std::string& name, const std::vector<std::string>& words) {
  const std::vector<std::string> own = name_words(name);
  return std::any_of(own.begin(), own.end(), [&](const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  });
}

// Whether all words of `flag` occur in `name`, in order, with few other letters: "--clip-gard" for "--clip-grad", but
// not "--keep-last" for "--beta-fast".
bool is_misspelling(const std::string& flag, const std::string& name) {
  const std::vector<std::string> known = name_words(name);
  size_t at = 0;
  int different = 0;
  for (const std::string& word : name_words(flag)) {
    const auto distance = [&] { return base::edit_distance(word, known[at]); };
    while (at < known.size() && 3 * distance() > static_cast<int>(word.size()) + 2) ++at;
    if (at == known.size()) return false;
    different += distance();
    ++at;
  }
  return 4 * different <= static_cast<int>(flag.size()) - 2;
}

size_t base_name_start(const std::string& program) {
  const size_t slash = program.rfind('/');
  return slash == std::string::npos ? 0 : slash + 1;
}

}  // namespace

std::string refusal_reason(const std::string& flag) {
  if (const char* reason = find_reason(kReplacements, flag)) return reason;
  const char* reason = find_reason(kNotImplemented, flag);
  return reason == nullptr ? "" : base::concat("not implemented (", reason, ")");
}

std::string nearest_flag(const std::string& flag) {
  std::vector<std::string> names;
  for (const FlagRow& row : flag_table()) names.emplace_back(row.flag);
  for (const HarmlessFlag& known : harmless_flags()) names.push_back(known.flag);
  const std::string name = base::nearest_name(flag, names);
  return is_misspelling(flag, name) ? name : "";
}

bool is_codegeex(const std::string& program) {
  return has_word(program.substr(base_name_start(program)), {"codegeex"});
}

bool is_other_model(const std::string& program) {
  static const std::vector<std::string> kWords = {
      "bert",    "t5",    "vlm",    "ict",     "rl",    "retro", "vision", "mimo", "multimodal", "biencoder",
      "dino",    "mae",   "yuan",   "inpaint", "glm",   "rwkv",  "vit",    "dit",  "clip",       "llava",
      "chatglm", "gemma", "falcon", "jamba",   "zamba", "realm", "sora",   "gan",  "swin",       "whisper"};
  // The program's name and its folder, for names such as train.py.
  const size_t name = base_name_start(program);
  if (program.compare(name, std::string::npos, "pretrain_gpt.py") == 0) return false;
  const size_t folder = name < 2 ? std::string::npos : program.rfind('/', name - 2);
  return has_word(program.substr(folder == std::string::npos ? 0 : folder), kWords);
}

}  // namespace metroplex::megatron

// Which of Megatron's flags and programs may not be passed over, though nothing here reads them.
#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "megatron/flags.h"

namespace metroplex::megatron {

// Names, or with a dash at the end the beginnings of names, of flags that change the function which is computed, the
// weights it starts from, or what is learned. Others change speed, memory, rounding, or what is printed and kept.
static const std::vector<std::string>& defining_names() {
  static const std::vector<std::string> kNames = {
      // experts
      "--moe-", "--num-moe-experts", "--num-experts",
      // attention
      "--qk-l2-norm", "--qk-clip", "--qk-clip-", "--attention-output-gate", "--apply-query-key-layer-scaling",
      "--experimental-attention-variant", "--dsa-", "--linear-", "--dataloader-inter-document-masking",
      // positions
      "--rope-", "--no-rope-freq", "--mrope-", "--yarn-", "--relative-attention-",
      // layers
      "--layernorm-zero-centered-gamma", "--apply-residual-connection-post-layernorm", "--enable-mhc-connections",
      "--mhc-", "--use-mup", "--mup-", "--mtp-", "--spec", "--hybrid-layer-pattern", "--hybrid-override-pattern",
      "--hybrid-attention-ratio", "--hybrid-mlp-ratio", "--is-hybrid-model", "--mamba-", "--gdp-", "--heterogeneous-",
      "--decoder-num-layers", "--decoder-seq-length", "--bert-", "--vision-", "--retro-", "--num-classes",
      "--vocab-extra-ids", "--padded-vocab-size", "--no-pad-vocab-size", "--yaml-cfg",
      // weights to start from
      "--embedding-init-method-std", "--init-method-xavier-uniform", "--pretrained-checkpoint",
      "--use-checkpoint-args", "--load-main-params-from-ckpt",
      // what is learned
      "--data-args-path", "--per-split-data-args-path", "--per-dataset-sequences-path", "--fim-", "--sft", "--sft-",
      "--perform-rl-step", "--rl-", "--grpo-", "--logits-load-", "--freeze-", "--iterations-to-skip",
      "--phase-transition-iterations", "--mask-prob", "--no-decoupled-weight-decay"};
  return kNames;
}

bool defines_the_model(const std::string& flag) {
  const auto& table = flag_table();
  if (std::any_of(table.begin(), table.end(), [&](const FlagRow& row) { return flag == row.flag; })) return false;
  const std::vector<std::string>& names = defining_names();
  const bool named = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return flag == name || (name.back() == '-' && flag.compare(0, name.size(), name) == 0);
  });
  // A slip of the pen in a long name counts too.
  return named || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
           return name.size() >= 10 && name.back() != '-' && base::edit_distance(flag, name) <= 2;
         });
}

std::string nearest_flag(const std::string& flag, bool loose) {
  std::vector<std::string> names;
  for (const FlagRow& row : flag_table()) names.emplace_back(row.flag);
  const std::string nearest = base::nearest_name(flag, names);
  const int slips = flag.size() < 10 ? 1 : 2;
  return loose || (!nearest.empty() && base::edit_distance(flag, nearest) <= slips) ? nearest : "";
}

bool decides_what_is_learned(const std::string& flag) {
  static const std::vector<std::string> kBeginnings = {"model.",
                                                       "optim.",
                                                       "precision.",
                                                       "train.",
                                                       "data.",
                                                       "checkpoint.",
                                                       "run.seed",
                                                       "gqa",
                                                       "query_groups",
                                                       "no_position",
                                                       "no_gelu_fusion",
                                                       "balancing",
                                                       "aux_loss_coeff",
                                                       "tokenizer",
                                                       "no_weight_decay_cond_type"};
  for (const FlagRow& row : flag_table()) {
    if (flag != row.flag) continue;
    const std::string sets = row.sets;
    return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                       [&](const std::string& begin) { return (";" + sets).find(";" + begin) != std::string::npos; });
  }
  return false;
}

bool trains_another_model(const std::string& program) {
  static const std::vector<std::string> kWords = {"bert",       "t5",        "hybrid", "mamba",  "vlm",
                                                  "ict",        "rl",        "retro",  "vision", "mimo",
                                                  "multimodal", "biencoder", "dino",   "mae",    "inpaint"};
  // The program's own name, and its folder's where the name is train.py or the like.
  const size_t slash = program.rfind('/'), name = slash == std::string::npos ? 0 : slash + 1;
  if (program.compare(name, std::string::npos, "pretrain_gpt.py") == 0) return false;
  const size_t folder = name < 2 ? std::string::npos : program.rfind('/', name - 2);
  std::string word;
  for (const char c : program.substr(folder == std::string::npos ? 0 : folder) + "/") {
    if (c != '/' && c != '_' && c != '.' && c != '-') {
      word += c;
      continue;
    }
    if (std::find(kWords.begin(), kWords.end(), word) != kWords.end()) return true;
    word.clear();
  }
  return false;
}

}  // namespace metroplex::megatron

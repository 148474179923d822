#include "mcore/settings.h"

#include <algorithm>

#include "base/error.h"
#include "base/join.h"
#include "mcore/shards.h"
#include "megatron/flags.h"

namespace metroplex::mcore {
namespace {

// Flags whose attribute has another name or the opposite value.
struct RenamedFlag {
  const char *flag, *attribute, *given_for;
};
constexpr RenamedFlag kRenamed[] = {
    {"--disable-bias-linear", "add_bias_linear", "False"},
    {"--no-bias-gelu-fusion", "bias_gelu_fusion", "False"},
    {"--no-yarn-correction-range-round-to-int", "yarn_correction_range_round_to_int", "False"},
};

// Flags that change how a model is trained or initialized, not what it is; the vocabulary is taken from the weights.
constexpr const char* kLeftOut[] = {"--encoder-num-layers",
                                    "--no-position-embedding",
                                    "--use-cpu-initialization",
                                    "--make-vocab-size-divisible-by",
                                    "--vocab-size",
                                    "--padded-vocab-size",
                                    "--moe-token-",
                                    "--moe-flex-",
                                    "--moe-expert-",
                                    "--moe-received-",
                                    "--moe-pad-",
                                    "--moe-paged-",
                                    "--moe-enable-echo",
                                    "--moe-num-echo",
                                    "--moe-echo-",
                                    "--moe-grouped-gemm",
                                    "--moe-layer-recompute",
                                    "--moe-shared-expert-overlap",
                                    "--moe-router-force-",
                                    "--moe-input-jitter"};
// Attributes that exist in every args, but matter only with --multi-latent-attention.
constexpr const char* kLatent[] = {
    "--q-lora-rank", "--kv-lora-rank", "--qk-head-dim",           "--qk-pos-emb-head-dim",
    "--v-head-dim",  "--rope-type",    "--rotary-scaling-factor", "--original-max-position-embeddings",
    "--beta-",       "--mscale"};

template <size_t N>
bool has_prefix(const std::string& flag, const char* const (&prefixes)[N]) {
  return std::any_of(std::begin(prefixes), std::end(prefixes),
                     [&](const char* prefix) { return flag.starts_with(prefix); });
}

// Returns the tokens of one flag; empty if the arguments do not set it.
std::vector<std::string> flag_tokens(const megatron::FlagRow& row, const Arguments& arguments) {
  const Attribute attribute = find_attribute(row.flag);
  const auto found = arguments.find(attribute.name);
  if (found == arguments.end() || found->second.empty()) return {};
  const std::vector<std::string>& words = found->second;
  if (row.take == megatron::ArgumentCount::kNone)
    return words.front() == attribute.given_for ? std::vector<std::string>{row.flag} : std::vector<std::string>{};
  if (words.front() == "False") return {};
  const std::string flag = row.flag;
  if (flag == "--window-size") return {flag, base::join(words, ",")};
  if (is_layer_list(flag)) return {flag, words.size() == 1 ? words.front() : "[" + base::join(words, ",") + "]"};
  std::vector<std::string> tokens{flag};
  tokens.insert(tokens.end(), words.begin(), words.end());
  return tokens;
}

// The command line that describes the model. Flags of other sections have values that Megatron requires.
std::vector<std::string> model_flags(const Arguments& arguments) {
  std::vector<std::string> tokens{"--micro-batch-size", "1", "--lr", "1"};
  const bool latent = is_true(arguments, "multi_latent_attention");
  const bool experts = integer_argument(arguments, "num_experts", 0) > 0;
  for (const megatron::FlagRow& row : megatron::model_flag_rows()) {
    const std::string flag = row.flag;
    if (is_left_out(flag) || (!latent && has_prefix(flag, kLatent))) continue;
    if (!experts && flag.starts_with("--moe-")) continue;
    if (latent && flag == "--kv-channels") continue;  // Megatron derives and ignores it
    const std::vector<std::string> words = flag_tokens(row, arguments);
    tokens.insert(tokens.end(), words.begin(), words.end());
  }
  tokens.insert(tokens.end(), {"--seq-length", std::to_string(integer_argument(arguments, "seq_length", 1))});
  return tokens;
}

std::string params_dtype(const Contents& contents, const std::string& directory) {
  const files::Dtype dtype = contents.tensors.at(kEmbedding).dtype;
  if (dtype == files::Dtype::kBF16) return "bf16";
  if (dtype == files::Dtype::kF16) return "fp16";
  const bool has_main = contents.tensors.contains(base::concat("main/", kEmbedding));
  for (const char* half : {"bf16", "fp16"}) {
    if (has_main && is_true(contents.arguments, half)) return half;
  }
  MPX_CHECK(dtype == files::Dtype::kF32, "checkpoint", "'", directory, "': ", kEmbedding, " is ",
            files::dtype_name(dtype), "; expected F32, BF16 or F16");
  return "fp32";
}

std::vector<std::string> read_model_settings(const Arguments& arguments, const std::string& directory) {
  std::vector<std::string> settings;
  try {
    for (const std::string& assignment : megatron::parse_arguments(model_flags(arguments)).assignments) {
      if (assignment.starts_with("model.")) settings.push_back(assignment);
    }
  } catch (const base::Error& error) {
    base::throw_error("checkpoint",
                      base::concat("'", directory, "': the args of the checkpoint: ", base::message_of(error),
                                   "; load and save it with Megatron-LM and other arguments"));
  }
  return settings;
}

void check_given(const std::string& directory, const std::function<bool(const std::string& key)>& given) {
  for (const char* key : {"model.num_layers", "model.hidden_size", "model.num_attention_heads"})
    MPX_CHECK(
        given && given(key), "checkpoint", "'", directory, "' has no args, and ", key,
        " is not given: the args describe the model; start a run with --model.from DIR and the --model.* settings "
        "of its model");
}

}  // namespace

Attribute find_attribute(const std::string& flag) {
  for (const RenamedFlag& renamed : kRenamed) {
    if (renamed.flag == flag) return {renamed.attribute, renamed.given_for};
  }
  std::string name = flag.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  return {name, "True"};
}

bool is_layer_list(const std::string& flag) {
  return flag == "--moe-layer-freq" || flag == "--window-attn-skip-freq" || flag == "--no-rope-freq" ||
         flag == "--linear-attention-freq";
}

bool is_left_out(const std::string& flag) { return has_prefix(flag, kLeftOut); }

std::vector<std::string> read_settings(const Contents& contents, const std::string& directory,
                                       const std::function<bool(const std::string& key)>& given) {
  const auto embedding = contents.tensors.find(kEmbedding);
  MPX_CHECK(embedding != contents.tensors.end() && embedding->second.shape.size() == 2, "checkpoint", "'", directory,
            "' has no ", kEmbedding, "; only GPT models of megatron.core are supported");
  std::vector<std::string> settings;
  if (contents.arguments.empty()) check_given(directory, given);
  else settings = read_model_settings(contents.arguments, directory);
  // In latent attention, Megatron rotates neighboring channels together (apply_rotary_pos_emb).
  if (is_true(contents.arguments, "multi_latent_attention")) settings.emplace_back("model.rotary_interleaved=true");
  settings.push_back(base::concat("model.vocab_size=", embedding->second.shape[0]));
  settings.emplace_back("model.make_vocab_size_divisible_by=1");
  settings.push_back("precision.params_dtype=" + params_dtype(contents, directory));
  const int64_t length = integer_argument(contents.arguments, "seq_length", 0);
  if (length > 0) settings.push_back(base::concat("train.seq_length=", length));
  return settings;
}

int64_t consumed_samples(const Contents& contents) {
  return integer_argument(contents.arguments, "consumed_train_samples", 0);
}

}  // namespace metroplex::mcore

#include "hf/config_reader.h"

#include "base/error.h"

namespace metroplex::hf {
namespace {

constexpr const char* kFix = "; correct the file";

// Keys that do not change the model's function: origin of the file, use of the model, training losses, and settings
// of generation.
const std::set<std::string> kNeutralKeys{
    "_name_or_path", "_commit_hash", "architectures", "attn_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "_experts_implementation", "auto_map", "aux_loss_alpha", "cache_implementation",
    "chunk_size_feed_forward", "dtype", "ep_size", "eod_token_id", "finetuning_task", "id2label", "image_token_id",
    "is_decoder", "is_encoder_decoder", "label2id", "model_max_length", "model_type", "output_attentions",
    "output_hidden_states", "output_router_logits", "pretraining_tp", "problem_type", "quantization_config",
    "reorder_and_upcast_attn", "return_dict", "router_aux_loss_coef", "seq_aux", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
    "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "use_cache", "use_return_dict",
    // defaults of generation in files of transformers 4
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "diversity_penalty", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "num_return_sequences", "max_length", "min_length", "max_new_tokens", "output_scores",
    "return_dict_in_generate", "remove_invalid_values", "bad_words_ids", "begin_suppress_tokens", "suppress_tokens",
    "exponential_decay_length_penalty", "tf_legacy_loss", "use_bfloat16"};

bool is_neutral(const std::string& key) { return kNeutralKeys.contains(key) || key.ends_with("_token_id"); }

}  // namespace

Json parse_json(const std::string& text) {
  static const std::string kInfinity = "Infinity";
  std::string standard;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (!quoted && text.compare(i, kInfinity.size(), kInfinity) == 0) {
      standard += R"({"__float__": "Infinity"})";
      i += kInfinity.size() - 1;
      continue;
    }
    standard += text[i];
    if (quoted && text[i] == '\\' && i + 1 < text.size()) standard += text[++i];
  }
  return Json::parse(standard);
}

void ConfigReader::add_defaults(const Json& defaults) {
  for (const auto& [key, value] : defaults.items()) {
    if (!config_.contains(key)) config_[key] = value;
  }
}

std::string ConfigReader::place(const char* key) const { return base::concat(file_, ": ", key); }

bool ConfigReader::has(const char* key) const {
  read_.insert(key);
  return config_.contains(key) && !config_.at(key).is_null();
}

const Json& ConfigReader::value(const char* key) const {
  static const Json kNull;
  return has(key) ? config_.at(key) : kNull;
}

int64_t ConfigReader::integer(const char* key) const {
  MPX_CHECK(has(key), "hf", place(key), " is missing; add it, as in the config.json of the published model");
  MPX_CHECK(config_.at(key).is_number_integer(), "hf", place(key), " is not a whole number: ", config_.at(key).dump(),
            kFix);
  return config_.at(key).get<int64_t>();
}

int64_t ConfigReader::integer_or_null(const char* key, int64_t otherwise) const {
  if (!has(key)) return config_.contains(key) ? 0 : otherwise;
  return integer(key);
}

double ConfigReader::number(const char* key, double otherwise) const {
  if (!has(key)) return otherwise;
  MPX_CHECK(config_.at(key).is_number(), "hf", place(key), " is not a number: ", config_.at(key).dump(), kFix);
  return config_.at(key).get<double>();
}

bool ConfigReader::flag(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  MPX_CHECK(config_.at(key).is_boolean(), "hf", place(key), " is neither true nor false: ", config_.at(key).dump(),
            kFix);
  return config_.at(key).get<bool>();
}

std::string ConfigReader::text(const char* key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  MPX_CHECK(config_.at(key).is_string(), "hf", place(key), " is not a string: ", config_.at(key).dump(), kFix);
  return config_.at(key).get<std::string>();
}

void ConfigReader::require(bool holds, const char* key, const std::string& wanted) const {
  MPX_CHECK(holds, "hf", place(key), " is ", has(key) ? config_.at(key).dump() : "missing",
            ", which is not supported; expected ", wanted);
}

void ConfigReader::refuse_unread(const std::string& owner) const {
  std::string unread;
  for (const auto& [key, value] : given_.items()) {
    if (!value.is_null() && !read_.contains(key) && !is_neutral(key))
      unread += base::concat(unread.empty() ? "" : ", ", key, " = ", value.dump());
  }
  MPX_CHECK(unread.empty(), "hf", file_, ": ", unread, ": not supported in ", owner,
            "; remove keys that do not change the model");
}

}  // namespace metroplex::hf

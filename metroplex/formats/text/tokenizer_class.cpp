#include "text/tokenizer_class.h"

#include <algorithm>
#include <array>

namespace metroplex::text {
namespace {

using Json = nlohmann::json;

constexpr const char* kSpaceSymbol = "\xE2\x96\x81";

// Classes that build their own steps, by model_type, from TOKENIZER_MAPPING_NAMES.
constexpr std::pair<std::string_view, std::string_view> kClassOfModel[] = {
    {"gemma", "GemmaTokenizer"},       {"gemma2", "GemmaTokenizer"},    {"gemma3", "GemmaTokenizer"},
    {"gemma3_text", "GemmaTokenizer"}, {"gemma3n", "GemmaTokenizer"},   {"gemma3n_text", "GemmaTokenizer"},
    {"gpt2", "GPT2Tokenizer"},         {"gpt_neo", "GPT2Tokenizer"},    {"gptj", "GPT2Tokenizer"},
    {"opt", "GPT2Tokenizer"},          {"phi", "GPT2Tokenizer"},        {"qwen2", "Qwen2Tokenizer"},
    {"qwen2_5_vl", "Qwen2Tokenizer"},  {"qwen2_moe", "Qwen2Tokenizer"}, {"qwen2_vl", "Qwen2Tokenizer"},
    {"qwen3", "Qwen2Tokenizer"},       {"qwen3_moe", "Qwen2Tokenizer"}, {"qwen3_next", "Qwen2Tokenizer"},
    {"qwen3_vl", "Qwen2Tokenizer"},    {"starcoder2", "GPT2Tokenizer"},
};

// Models for which transformers ignores the declared class and uses the file as it is (TokenizersBackend).
constexpr std::string_view kUnchangedTypes[] = {
    "ernie4_5",   "ernie4_5_moe", "glm",       "glm4",    "glm4_moe",   "gpt_bigcode", "granite",
    "granitemoe", "internlm2",    "internlm3", "jamba",   "minimax_m2", "minicpm3",    "ministral",
    "ministral3", "mistral",      "mistral3",  "mixtral", "nemotron",   "olmo2",       "olmo3",
    "phi3",       "phimoe",       "pixtral",   "stablelm"};

constexpr std::string_view kKnownClasses[] = {"GPT2Tokenizer", "GemmaTokenizer", "LlamaTokenizer", "Qwen2Tokenizer"};

constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Json byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"use_regex", use_regex}};
}

Json split_step(const Json& pattern, const char* behavior) {
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", false}};
}

Json space_decoder(bool strips_first_space) {
  Json steps = Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpaceSymbol}}}, {"content", " "}},
                            {{"type", "ByteFallback"}},
                            {{"type", "Fuse"}}});
  if (strips_first_space) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", steps}};
}

void build_llama(const SpecialNames& names, Json& tokenizer) {
  const bool prefix = names.add_prefix_space.value_or(true);
  tokenizer["normalizer"] = nullptr;
  tokenizer["pre_tokenizer"] = {{"type", "Metaspace"},
                                {"replacement", kSpaceSymbol},
                                {"prepend_scheme", !prefix        ? "never"
                                                   : names.legacy ? "always"
                                                                  : "first"},
                                {"split", false}};
  tokenizer["decoder"] = space_decoder(prefix);
}

void build_gemma(const SpecialNames&, Json& tokenizer) {
  tokenizer["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceSymbol}};
  tokenizer["pre_tokenizer"] = split_step({{"String", " "}}, "MergedWithPrevious");
  tokenizer["decoder"] = space_decoder(false);
}

void build_qwen2(const SpecialNames& names, Json& tokenizer) {
  tokenizer["normalizer"] = {{"type", "NFC"}};
  tokenizer["pre_tokenizer"] = {{"type", "Sequence"},
                                {"pretokenizers",
                                 {split_step({{"Regex", kQwen2Pattern}}, "Isolated"),
                                  byte_level(names.add_prefix_space.value_or(false), false)}}};
  tokenizer["decoder"] = byte_level(true, true);
}

void build_gpt2(const SpecialNames& names, Json& tokenizer) {
  tokenizer["normalizer"] = nullptr;
  tokenizer["pre_tokenizer"] = byte_level(names.add_prefix_space.value_or(false), true);
  tokenizer["decoder"] = byte_level(true, true);
}

}  // namespace

std::string choose_tokenizer_class(std::string_view declared, std::string_view model_type) {
  if (declared.ends_with("Fast") && declared != "PreTrainedTokenizerFast") declared.remove_suffix(4);
  if (std::find(std::begin(kUnchangedTypes), std::end(kUnchangedTypes), model_type) != std::end(kUnchangedTypes))
    return "";
  const auto model = std::find_if(std::begin(kClassOfModel), std::end(kClassOfModel),
                                  [&](const auto& row) { return row.first == model_type; });
  // transformers also ignores the declared class of qwen2.
  if (model != std::end(kClassOfModel) && (declared.empty() || model_type == "qwen2")) declared = model->second;
  const bool overrides =
      std::find(std::begin(kKnownClasses), std::end(kKnownClasses), declared) != std::end(kKnownClasses);
  return overrides ? std::string(declared) : "";
}

std::vector<DefaultToken> default_tokens(std::string_view tokenizer_class) {
  if (tokenizer_class == "LlamaTokenizer")
    return {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  if (tokenizer_class == "GemmaTokenizer")
    return {{"bos_token", "<bos>"},
            {"eos_token", "<eos>"},
            {"unk_token", "<unk>"},
            {"pad_token", "<pad>"},
            {"mask_token", "<mask>"}};
  if (tokenizer_class == "Qwen2Tokenizer")
    return {{"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}};
  if (tokenizer_class == "GPT2Tokenizer")
    return {{"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}};
  return {};
}

void apply_tokenizer_class(const SpecialNames& names, Json& tokenizer) {
  using Build = void (*)(const SpecialNames&, Json&);
  constexpr std::pair<std::string_view, Build> kBuilds[] = {{"LlamaTokenizer", build_llama},
                                                            {"GemmaTokenizer", build_gemma},
                                                            {"Qwen2Tokenizer", build_qwen2},
                                                            {"GPT2Tokenizer", build_gpt2}};
  if (!tokenizer.is_object() || !tokenizer.contains("model") || !tokenizer["model"].is_object()) return;
  for (const auto& [name, build] : kBuilds) {
    if (name != names.tokenizer_class) continue;
    build(names, tokenizer);
    const bool spaced = name == "LlamaTokenizer" || name == "GemmaTokenizer";
    Json& model = tokenizer["model"];
    model["fuse_unk"] = model["byte_fallback"] = spaced;
    model["ignore_merges"] = false;
    model["unk_token"] = name == "GemmaTokenizer" ? Json(names.unk.value_or("<unk>")) : Json();
    if (names.has_added_decoder) tokenizer["added_tokens"] = Json::array();
  }
}

}  // namespace metroplex::text

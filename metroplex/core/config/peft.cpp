#include "config/peft.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "config/derived.h"
#include "config/experts.h"
#include "config/family.h"
#include "config/layer_parts.h"
#include "config/module_pattern.h"

namespace metroplex::config {
namespace {

constexpr std::array<SavedModule, 2> kSavedModules{
    {{"embed_tokens", "embedding.word_embeddings.weight"}, {"lm_head", "output_layer.weight"}}};

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

double find_number(const std::vector<std::string>& entries, const std::string& module, double otherwise) {
  for (const std::string& entry : entries) {
    const auto found = read_module_number(entry);
    if (found && matches_module(found->pattern, module)) return found->number;
  }
  return otherwise;
}

}  // namespace

std::optional<ModuleNumber> read_module_number(const std::string& text) {
  const auto entry = read_module_entry(text);
  if (!entry) return std::nullopt;
  double number = 0;
  const char *const begin = entry->value.data(), *const end = begin + entry->value.size();
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end || !(number > 0) || !std::isfinite(number)) return std::nullopt;
  return ModuleNumber{entry->pattern, number};
}

bool is_target(const std::string& target, const std::string& module) {
  return module == target || module.ends_with("." + target);
}

int64_t Peft::rank(const std::string& module) const {
  return static_cast<int64_t>(find_number(rank_pattern, module, static_cast<double>(lora_rank)));
}

double Peft::alpha(const std::string& module) const { return find_number(alpha_pattern, module, lora_alpha); }

double Peft::scale(const std::string& module) const {
  const auto its_rank = static_cast<double>(rank(module));
  return alpha(module) / (use_rslora ? std::sqrt(its_rank) : its_rank);
}

bool is_routed(const std::string& module) {
  return module.starts_with("experts.") || module.find(".experts.") != std::string::npos;
}

bool Peft::adapts(const std::string& module) const {
  if (!lora()) return false;
  const bool routed = is_routed(module);
  if (lora_target_modules.empty()) return !routed;
  return std::any_of(lora_target_modules.begin(), lora_target_modules.end(), [&](const std::string& target) {
    return is_target(target, module) && (!routed || is_routed(target));
  });
}

bool Peft::adapts_routed_experts() const {
  return lora() && std::any_of(lora_target_modules.begin(), lora_target_modules.end(), is_routed);
}

bool Peft::trains(const std::string& param) const {
  if (is_adapter(param)) return true;
  return std::any_of(kSavedModules.begin(), kSavedModules.end(), [&](const SavedModule& module) {
    return param == module.param && contains(modules_to_save, module.word);
  });
}

std::vector<SavedModule> saved_modules(const Model& model) {
  return {kSavedModules.begin(), kSavedModules.begin() + (model.tied() ? 1 : 2)};
}

AdapterBox whole_layer(const std::string& word, int64_t rows) { return {word, 1, rows, 0, rows}; }

std::vector<AdapterBox> qkv_boxes(const Model& model, bool with_queries) {
  const int64_t heads = model.num_attention_heads,
                groups = model.num_query_groups > 0 ? model.num_query_groups : heads,
                d = model.kv_channels > 0 ? model.kv_channels : model.hidden_size / heads,
                queries = with_queries ? heads / groups * d : 0, width = queries + 2 * d;
  std::vector<AdapterBox> boxes;
  if (with_queries) boxes.push_back({"q_proj", groups, width, 0, queries});
  boxes.push_back({"k_proj", groups, width, queries, d});
  boxes.push_back({"v_proj", groups, width, queries + d, d});
  return boxes;
}

std::vector<AdapterBox> fc1_boxes(const Model& model, int64_t width) {
  if (!model.gated_linear_unit) return {whole_layer("up_proj", width)};
  return {{"gate_proj", 1, 2 * width, 0, width}, {"up_proj", 1, 2 * width, width, width}};
}

// The projections before and after the experts.
constexpr const char* kLatentWords[] = {"fc1_latent_proj", "fc2_latent_proj"};

static std::vector<std::string> attention_words(const Model& model) {
  if (!model.multi_latent_attention) return {"q_proj", "k_proj", "v_proj", "o_proj"};
  if (model.q_lora_rank > 0) return {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"};
  return {"q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"};
}

std::vector<std::string> adapter_words(const Model& model) {
  std::vector<std::string> words;
  if (any_layer_has(model, &LayerParts::attention)) words = attention_words(model);
  const bool dense = any_layer_has(model, &LayerParts::mlp) || family(model.family).top_query;
  const auto add_mlp = [&](const std::string& prefix) {
    if (model.gated_linear_unit) words.push_back(prefix + "gate_proj");
    words.push_back(prefix + "up_proj");
    words.push_back(prefix + "down_proj");
  };
  if (dense || model.moe_shared_expert_intermediate_size > 0) add_mlp("");
  if (model.has_experts()) add_mlp("experts.");
  if (model.moe_latent_size > 0) words.insert(words.end(), std::begin(kLatentWords), std::end(kLatentWords));
  return words;
}

static bool ends_with(const std::string& text, const std::string& end) {
  return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool is_adapter(const std::string& param) {
  return ends_with(param, kLoraA) || ends_with(param, kLoraB) || ends_with(param, kLoraMagnitude);
}

std::string adapted_module(const std::string& param) { return param.substr(0, param.rfind(".lora_")); }

std::string adapter_module(const std::string& linear, const std::string& word) {
  return linear.substr(0, linear.rfind('.') + 1) + word;
}

std::optional<AdapterPlace> adapter_place(const Model& model, const std::string& module) {
  const size_t dot = module.rfind('.');
  if (dot == std::string::npos) return std::nullopt;
  const std::string prefix = module.substr(0, dot + 1), word = module.substr(dot + 1);
  const auto place = [&](const char* linear, const std::vector<AdapterBox>& boxes) -> std::optional<AdapterPlace> {
    for (const AdapterBox& box : boxes) {
      if (box.word == word) return AdapterPlace{prefix + linear, box};
    }
    return std::nullopt;
  };
  const Model& m = model;
  const int64_t heads = m.num_attention_heads;
  if (word == "o_proj") return place("linear_proj", {whole_layer(word, m.hidden_size)});
  if (word == "down_proj") {
    const int64_t rows = is_routed(module) ? expert_row_width(m) : m.hidden_size;
    return place("linear_fc2", {whole_layer(word, rows)});
  }
  if (word == kLatentWords[0]) return place(kLatentWords[0], {whole_layer(word, m.moe_latent_size)});
  if (word == kLatentWords[1]) return place(kLatentWords[1], {whole_layer(word, m.hidden_size)});
  if (word == "gate_proj" || word == "up_proj") {
    const bool shared = prefix.find(".shared_experts.") != std::string::npos;
    const int64_t dense_width = is_routed(module) ? expert_ffn_width(m) : ffn_width(m);
    return place("linear_fc1", fc1_boxes(m, shared ? m.moe_shared_expert_intermediate_size : dense_width));
  }
  if (!m.multi_latent_attention) return place("linear_qkv", qkv_boxes(m, true));
  const int64_t queries = heads * (m.qk_head_dim + m.qk_pos_emb_head_dim);
  if (word == "q_proj") return place("linear_q_proj", {whole_layer(word, queries)});
  if (word == "q_a_proj") return place("linear_q_down_proj", {whole_layer(word, m.q_lora_rank)});
  if (word == "q_b_proj") return place("linear_q_up_proj", {whole_layer(word, queries)});
  if (word == "kv_a_proj_with_mqa")
    return place("linear_kv_down_proj", {whole_layer(word, m.kv_lora_rank + m.qk_pos_emb_head_dim)});
  if (word == "kv_b_proj")
    return place("linear_kv_up_proj", {whole_layer(word, heads * (m.qk_head_dim + m.v_head_dim))});
  return std::nullopt;
}

}  // namespace metroplex::config

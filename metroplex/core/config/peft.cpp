#include "config/peft.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "config/derived.h"
#include "config/experts.h"
#include "config/family.h"

namespace metroplex::config {
namespace {

constexpr std::array<SavedModule, 2> kSavedModules{
    {{"embed_tokens", "embedding.word_embeddings.weight"}, {"lm_head", "output_layer.weight"}}};

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

double Peft::lora_scale() const {
  const auto rank = static_cast<double>(lora_rank);
  return lora_alpha / (use_rslora ? std::sqrt(rank) : rank);
}

bool Peft::adapts(const std::string& word) const {
  return lora() && (lora_target_modules.empty() || contains(lora_target_modules, word));
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

std::vector<std::string> adapter_words(const Model& model) {
  std::vector<std::string> words;
  if (!model.multi_latent_attention) {
    words = {"q_proj", "k_proj", "v_proj"};
  } else if (model.q_lora_rank > 0) {
    words = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"};
  } else {
    words = {"q_proj", "kv_a_proj_with_mqa", "kv_b_proj"};
  }
  words.emplace_back("o_proj");
  const std::vector<bool> experts = model.has_experts() ? moe_layers(model) : std::vector<bool>();
  const bool dense = !model.has_experts() || std::find(experts.begin(), experts.end(), false) != experts.end() ||
                     family(model.family).top_query;
  if (!dense && model.moe_shared_expert_intermediate_size == 0) return words;
  if (model.gated_linear_unit) words.emplace_back("gate_proj");
  words.emplace_back("up_proj");
  words.emplace_back("down_proj");
  return words;
}

static bool ends_with(const std::string& text, const std::string& end) {
  return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool is_adapter(const std::string& param) { return ends_with(param, kLoraA) || ends_with(param, kLoraB); }

std::string adapted_module(const std::string& param) {
  return param.substr(0, param.size() - std::string(kLoraA).size());
}

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
  if (word == "down_proj") return place("linear_fc2", {whole_layer(word, m.hidden_size)});
  if (word == "gate_proj" || word == "up_proj") {
    const bool shared = prefix.find(".shared_experts.") != std::string::npos;
    return place("linear_fc1", fc1_boxes(m, shared ? m.moe_shared_expert_intermediate_size : ffn_width(m)));
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

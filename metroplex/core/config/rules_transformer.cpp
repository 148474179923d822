#include "config/rules_transformer.h"

#include <algorithm>

#include "base/error.h"
#include "config/experts.h"
#include "config/layer_parts.h"
#include "config/parallel.h"
#include "config/memory.h"

namespace metroplex::config {

namespace {

std::optional<int64_t> unless_zero(int64_t value) { return value == 0 ? std::nullopt : std::optional(value); }

class SettingsChecker {
 public:
  explicit SettingsChecker(const TransformerSettings& settings) : s_(settings) {}

  std::vector<Violation> run() {
    if (sizes()) {
      heads();
      parallelism();
      stages();
      recompute();
    }
    return std::move(list_);
  }

 private:
  // Divisors used below must be at least 1.
  bool sizes() {
    const std::pair<const char*, int64_t> sizes[] = {
        {"model.num_layers", s_.num_layers},
        {"model.num_attention_heads", s_.num_attention_heads},
        {"parallel.tensor_model_parallel_size", s_.tp},
        {"parallel.pipeline_model_parallel_size", s_.pp},
        {"parallel.virtual_pipeline_model_parallel_size", s_.vpp.value_or(1)}};
    for (const auto& [key, size] : sizes) {
      if (size < 1) refuse(list_, key, size, "must be at least 1", "choose 1 or more");
    }
    return list_.empty();
  }

  void heads() {
    if (s_.num_attention_heads % s_.tp != 0) {
      refuse(list_, "model.num_attention_heads", s_.num_attention_heads,
             base::concat("must be a multiple of parallel.tensor_model_parallel_size = ", s_.tp),
             "choose a tensor-parallel size that divides the heads");
    }
    const int64_t groups = s_.num_query_groups.value_or(s_.num_attention_heads);
    if (groups % s_.tp != 0 && (groups == 0 || s_.tp % groups != 0)) {
      refuse(list_, "model.num_query_groups", groups,
             base::concat("must be a multiple of parallel.tensor_model_parallel_size = ", s_.tp),
             "choose a tensor-parallel size that divides the query groups");
    }
  }

  void parallelism() {
    if (s_.sequence_parallel && s_.tp <= 1) {
      refuse(list_, "parallel.sequence_parallel", "true", "needs parallel.tensor_model_parallel_size above 1",
             "set it to false or use more tensor-parallel ranks");
    }
  }

  void stages() {
    const bool uneven = s_.first_stage_layers || s_.last_stage_layers;
    const bool account = s_.account_for_embedding || s_.account_for_loss;
    if (uneven && account) {
      refuse(list_, "parallel.decoder_first_pipeline_num_layers",
             s_.first_stage_layers.value_or(s_.last_stage_layers.value_or(0)),
             "uneven first or last stages cannot be combined with account_for_embedding_in_pipeline_split or "
             "account_for_loss_in_pipeline_split",
             "keep one of the two");
    }
    if (s_.layout) {
      layout(uneven || account);
    } else if (uneven) {
      uneven_stages();
    } else if (account) {
      counted_stages();
    }
  }

  void layout(bool other_ways) {
    static constexpr const char* kKey = "parallel.pipeline_model_parallel_layout";
    if (other_ways) {
      refuse(list_, kKey, *s_.layout, "excludes uneven first or last stages and counting the embedding or the loss",
             "put everything into the layout, or leave it empty");
    }
    std::string problem;
    const auto stages = unrolled_layout(*s_.layout, problem);
    if (!stages)
      return refuse(list_, kKey, *s_.layout, "cannot be read: " + problem, "write it like \"Et*3|(tt|)*4,tL\"");
    const auto count = static_cast<int64_t>(stages->size());
    if (count % s_.pp != 0) {
      refuse(
          list_, kKey, *s_.layout,
          base::concat("has ", count, " stages, not a multiple of parallel.pipeline_model_parallel_size = ", s_.pp),
          "add or remove a |");
    } else if (s_.vpp && *s_.vpp != count / s_.pp) {
      refuse(list_, "parallel.virtual_pipeline_model_parallel_size", *s_.vpp,
             base::concat("the layout has ", count, " stages on ", s_.pp, " pipeline ranks, that is ", count / s_.pp,
                          " virtual stages"),
             "leave it out");
    }
    std::string flat;
    for (const auto& stage : *stages) flat += stage;
    const auto letters = [&](char letter) { return std::count(flat.begin(), flat.end(), letter); };
    if (letters('E') != 1 || letters('L') != 1 || flat.front() != 'E' || flat.back() != 'L') {
      refuse(list_, kKey, *s_.layout, "must begin with its only E and end with its only L",
             "write it like \"Et*3|(tt|)*4,tL\"");
    }
    if (letters('t') != s_.num_layers) {
      refuse(list_, kKey, *s_.layout,
             base::concat("has ", letters('t'), " layers, model.num_layers is ", s_.num_layers),
             "make the two agree");
    }
    const int64_t mtp = s_.mtp_num_layers;
    if (letters('m') != mtp) {
      refuse(list_, kKey, *s_.layout, base::concat("has ", letters('m'), " m, model.mtp_num_layers is ", mtp),
             "make the two agree");
    } else if (mtp > 0) {
      multi_token(*stages);
    }
  }

  void multi_token(const std::vector<std::string>& stages) {
    static constexpr const char* kKey = "parallel.pipeline_model_parallel_layout";
    const std::string all(static_cast<size_t>(s_.mtp_num_layers), 'm');
    const auto holder = std::find_if(stages.begin(), stages.end(),
                                     [](const std::string& stage) { return stage.find('m') != std::string::npos; });
    const bool in_order = std::all_of(holder + 1, stages.end(), [](const std::string& stage) {
      return stage.find_first_not_of('L') == std::string::npos;
    });
    if (!in_order || !(holder->ends_with(all) || holder->ends_with(all + "L"))) {
      refuse(list_, kKey, *s_.layout, "must have all m in one stage, after every t and before the L", "move them");
    } else if (static_cast<int64_t>(stages.end() - holder) > s_.pp) {
      refuse(list_, kKey, *s_.layout, "must have its m in the last stage of a rank, as in Megatron",
             base::concat("move them into one of the last ", s_.pp, " stages"));
    }
  }

  void end_stage(const char* key, const std::optional<int64_t>& layers, int64_t& middle_layers,
                 int64_t& middle_stages) {
    if (!layers) return;
    if (*layers <= 0) refuse(list_, key, *layers, "must be larger than 0", "leave it out for an even split");
    if (s_.vpp && *layers % *s_.vpp != 0) {
      refuse(list_, key, *layers, base::concat("must be a multiple of the ", *s_.vpp, " virtual stages"),
             "choose a multiple, or other virtual stages");
    }
    middle_layers -= *layers;
    middle_stages -= 1;
  }

  void uneven_stages() {
    int64_t layers = s_.num_layers, stages = s_.pp;
    end_stage("parallel.decoder_first_pipeline_num_layers", s_.first_stage_layers, layers, stages);
    end_stage("parallel.decoder_last_pipeline_num_layers", s_.last_stage_layers, layers, stages);
    if ((layers != 0) != (stages != 0)) {
      return refuse(list_, "model.num_layers", s_.num_layers,
                    base::concat("leaves ", layers, " layers for ", stages, " stages between the first and the last"),
                    "change the layers of the end stages, or pipeline_model_parallel_size");
    }
    if (stages <= 0) return;
    if (layers % stages != 0) {
      return refuse(
          list_, "model.num_layers", s_.num_layers,
          base::concat("leaves ", layers, " layers, which do not divide over the ", stages, " middle stages"),
          "change the layers of the end stages");
    }
    if (s_.vpp && layers / stages % *s_.vpp != 0) {
      refuse(list_, "model.num_layers", s_.num_layers,
             base::concat("leaves ", layers / stages, " layers a middle stage, not a multiple of the ", *s_.vpp,
                          " virtual stages"),
             "change the layers of the end stages, or the virtual stages");
    }
  }

  void counted_stages() {
    const int64_t units = s_.num_layers + (s_.account_for_embedding ? 1 : 0) + (s_.account_for_loss ? 1 : 0);
    if (units % s_.pp != 0 || (s_.vpp && units / s_.pp % *s_.vpp != 0)) {
      refuse(list_, "model.num_layers", s_.num_layers,
             base::concat("gives ", units, " units with the counted embedding or loss, which do not divide over ",
                          s_.pp, " stages of ", s_.vpp.value_or(1), " virtual stages"),
             "choose the layers so that they do, or do not count embedding and loss");
    }
  }

  void recompute() {
    if (!s_.recompute_granularity) return;
    const std::string& granularity = *s_.recompute_granularity;
    const std::optional<Recompute> known = value_of<Recompute>(granularity);
    const bool selective = known == Recompute::selective;
    if (!selective && known != Recompute::full)
      refuse(list_, "memory.recompute_granularity", granularity, "must be full or selective", "choose one of them");
    const bool method =
        s_.recompute_method &&
        value_of<RecomputeMethod>(*s_.recompute_method).value_or(RecomputeMethod::none) != RecomputeMethod::none;
    if (s_.recompute_method && !method) {
      refuse(list_, "memory.recompute_method", *s_.recompute_method, "must be uniform or block",
             "choose one of them");
    } else if (!s_.recompute_method && !selective) {
      refuse(list_, "memory.recompute_method", "", "must be given with memory.recompute_granularity = " + granularity,
             "choose uniform or block");
    }
    if (!selective && !s_.recompute_num_layers) {
      refuse(list_, "memory.recompute_num_layers", 0,
             "must be at least 1 with memory.recompute_granularity = " + granularity, "start with 1");
    }
    if (selective && s_.recompute_num_layers) {
      refuse(list_, "memory.recompute_num_layers", *s_.recompute_num_layers,
             "has no meaning with memory.recompute_granularity = selective, which recomputes in all layers",
             "leave it 0 or use full");
    }
    if (s_.distribute_saved_activations && s_.sequence_parallel) {
      refuse(list_, "memory.distribute_saved_activations", "true",
             "excludes parallel.sequence_parallel, which already shards them over the tensor-parallel ranks",
             "turn it off");
    }
    if (selective) recompute_modules(s_.recompute_modules.value_or(std::vector<std::string>{}));
  }

  void recompute_modules(const std::vector<std::string>& modules) {
    const std::vector<std::string>& known = recompute_module_names();
    std::string names;
    for (size_t i = 0; i < known.size(); ++i)
      names += (i == 0 ? "" : i + 1 < known.size() ? ", " : " or ") + known[i];
    for (const std::string& module : modules) {
      if (std::find(known.begin(), known.end(), module) != known.end()) continue;
      const std::string nearest = base::nearest_name(module, known);
      refuse(list_, "memory.recompute_modules", module, "must be one of " + names,
             nearest.empty() ? "use one of these" : "did you mean " + nearest + "?");
    }
    if (among("mla_up_proj", modules) && !s_.latent_attention)
      refuse(list_, "memory.recompute_modules", "mla_up_proj", "needs model.multi_latent_attention", "leave it out");
  }

  const TransformerSettings& s_;
  std::vector<Violation> list_;
};

ExpertSettings expert_settings(const Model& m) {
  ExpertSettings settings;
  settings.num_moe_experts = m.num_moe_experts;
  settings.moe_ffn_hidden_size = unless_zero(m.moe_ffn_hidden_size);
  std::string problem;
  const auto layers = read_moe_layers(m.moe_layer_freq, m.num_layers, problem);
  settings.some_layers_dense = !layers || std::find(layers->begin(), layers->end(), false) != layers->end();
  if (!m.hybrid_layer_pattern.empty()) settings.some_layers_dense = any_layer_has(m, &LayerParts::mlp);
  settings.topk = m.moe_router_topk;
  settings.score_function = m.moe_router_score_function.text();
  settings.pre_softmax = m.moe_router_pre_softmax;
  settings.num_groups = unless_zero(m.moe_router_num_groups);
  settings.group_topk = unless_zero(m.moe_router_group_topk);
  settings.expert_bias = m.moe_router_enable_expert_bias;
  settings.balancing = comma_list(m.moe_router_load_balancing_type);
  settings.num_coefficients = comma_list(m.moe_aux_loss_coeff).size();
  if (m.has_capacity()) settings.capacity_factor = m.moe_expert_capacity_factor;
  settings.pad_to_capacity = m.moe_pad_expert_input_to_capacity;
  settings.dispatcher = m.moe_token_dispatcher_type.text();
  settings.grouped_gemm = m.moe_grouped_gemm;
  settings.shared_size = unless_zero(m.moe_shared_expert_intermediate_size);
  settings.shared_overlap = m.moe_shared_expert_overlap;
  return settings;
}

}  // namespace

const std::vector<std::string>& recompute_module_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const Module& module : kModules) names.emplace_back(module.name);
    return names;
  }();
  return kNames;
}

TransformerSettings transformer_settings(const Config& config) {
  const Model& m = config.model;
  const Parallel& parallel = config.parallel;
  TransformerSettings settings;
  settings.num_layers = m.num_layers;
  settings.num_attention_heads = m.num_attention_heads;
  settings.num_query_groups = unless_zero(m.num_query_groups);
  settings.tp = parallel.tp();
  settings.pp = parallel.pp();
  if (parallel.vpp() != 1) settings.vpp = parallel.vpp();
  settings.ep = parallel.ep();
  settings.sequence_parallel = parallel.sequence_parallel && parallel.tp() > 1;
  settings.first_stage_layers = unless_zero(parallel.decoder_first_pipeline_num_layers);
  settings.last_stage_layers = unless_zero(parallel.decoder_last_pipeline_num_layers);
  settings.account_for_embedding = parallel.account_for_embedding_in_pipeline_split;
  settings.account_for_loss = parallel.account_for_loss_in_pipeline_split;
  settings.mtp_num_layers = config.model.mtp_num_layers;
  if (!parallel.pipeline_model_parallel_layout.empty()) settings.layout = parallel.pipeline_model_parallel_layout;
  const Memory& memory = config.memory;
  if (memory.recompute_granularity != Recompute::none)
    settings.recompute_granularity = memory.recompute_granularity.text();
  if (memory.recompute_method != RecomputeMethod::none) settings.recompute_method = memory.recompute_method.text();
  settings.recompute_num_layers = unless_zero(memory.recompute_num_layers);
  if (!memory.recompute_modules.empty()) settings.recompute_modules = memory.recompute_modules;
  settings.distribute_saved_activations = memory.distribute_saved_activations;
  settings.add_bias_linear = m.add_bias_linear;
  settings.latent_attention = m.multi_latent_attention;
  settings.etp = parallel.etp();
  if (m.has_experts()) settings.experts = expert_settings(m);
  settings.graphs = {config.train.cuda_graph_impl.text(), config.train.cuda_graph_modules};
  return settings;
}

bool among(const std::string& word, const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::vector<Violation> transformer_violations(const TransformerSettings& settings) {
  std::vector<Violation> list = SettingsChecker(settings).run();
  for (const auto& found : {expert_violations(settings), graph_violations(settings)}) {
    list.insert(list.end(), found.begin(), found.end());
  }
  return list;
}

}  // namespace metroplex::config

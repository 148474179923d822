// Rules of Megatron's TransformerConfig for graph capture, for keys that exist here.
#include "config/rules_transformer.h"

#include "config/cuda_graph.h"

namespace metroplex::config {

namespace {

constexpr const char* kGraphImpl = "train.cuda_graph_impl";
constexpr const char* kGraphModules = "train.cuda_graph_modules";

class GraphChecker {
 public:
  explicit GraphChecker(const TransformerSettings& settings)
      : s_(settings), e_(settings.experts), modules_(cuda_graph_module_set(settings.graphs.modules)) {}

  std::vector<Violation> run() {
    words();
    const std::optional<CudaGraphImpl> impl = value_of<CudaGraphImpl>(s_.graphs.impl);
    if (impl == CudaGraphImpl::full_iteration && !s_.graphs.modules.empty()) {
      refuse(list_, kGraphModules, base::concat(s_.graphs.modules.size(), " modules"),
             base::concat("must be empty with ", kGraphImpl, " = full_iteration, which captures the whole step"),
             "leave the list empty");
    }
    if (impl == CudaGraphImpl::local || impl == CudaGraphImpl::transformer_engine) parts(*impl);
    return std::move(list_);
  }

 private:
  void words() {
    if (!value_of<CudaGraphImpl>(s_.graphs.impl)) {
      refuse(list_, kGraphImpl, s_.graphs.impl, "must be none, local, transformer_engine or full_iteration",
             "choose one of them");
    }
    for (const std::string& word : s_.graphs.modules) {
      if (value_of<CudaGraphModule>(word)) continue;
      const std::string nearest = base::nearest_name(word, words_of<CudaGraphModule>());
      refuse(list_, kGraphModules, word, "must be attn, mlp, moe, moe_router, moe_preprocess or mamba",
             nearest.empty() ? "use one of these" : "did you mean " + nearest + "?");
    }
  }

  void parts(CudaGraphImpl impl) {
    using enum CudaGraphModule;
    const bool routes = modules_.has(moe_router), prepares = modules_.has(moe_preprocess);
    const bool local = impl == CudaGraphImpl::local;  // local treats moe_router and moe_preprocess as one
    if (modules_.has(moe) && (routes || (local && prepares))) {
      refuse(list_, kGraphModules, "moe",
             base::concat("excludes ", routes ? "moe_router" : "moe_preprocess", ", which is a part of it"),
             "keep one of the two");
    }
    if (prepares && !routes && !local) {
      refuse(list_, kGraphModules, "moe_preprocess", "needs moe_router, whose results it reads", "add moe_router");
    }
    if (e_.num_moe_experts.value_or(0) <= 1) {
      for (const CudaGraphModule module : {moe, moe_router}) {
        const bool named = modules_.has(module) || (module == moe_router && local && prepares);
        if (!named) continue;
        refuse(list_, kGraphModules, text_of(module),
               "is for experts, but the model has none (model.num_moe_experts)",
               "leave it out, or give the model experts");
      }
    } else if (modules_.has(mlp) && !e_.some_layers_dense) {
      refuse(list_, kGraphModules, "mlp", "is for dense layers, but all layers have experts (model.moe_layer_freq)",
             "leave it out");
    }
    if (s_.recompute_granularity && *s_.recompute_granularity != "selective") {
      refuse(list_, kGraphImpl, s_.graphs.impl,
             "captures modules of layers, but memory.recompute_granularity = " + *s_.recompute_granularity +
                 " recomputes whole layers",
             "use full_iteration, or selective recompute");
    }
  }

  const TransformerSettings& s_;
  const ExpertSettings& e_;
  const CudaGraphModules modules_;
  std::vector<Violation> list_;
};

}  // namespace

std::vector<Violation> graph_violations(const TransformerSettings& settings) { return GraphChecker(settings).run(); }

}  // namespace metroplex::config

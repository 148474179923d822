#include "megatron/cuda_graphs.h"

#include <algorithm>
#include <utility>

#include "config/cuda_graph.h"

namespace metroplex::megatron {

using config::among;

using base::concat;
using Words = std::vector<std::string>;

static constexpr const char* kImpl = "cuda_graph_impl";
static constexpr const char* kScope = "cuda_graph_modules";
static constexpr const char* kInference = "inference_cuda_graph_scope";

static bool is_none_or(const std::optional<std::string>& scope, const char* word) { return !scope || *scope == word; }

static void migrate_switches(CudaGraphOptions& options, std::vector<config::Violation>& list) {
  if (!options.enable_cuda_graph && !options.external_cuda_graph) return;
  const char* name = options.enable_cuda_graph ? "enable_cuda_graph" : "external_cuda_graph";
  if (options.impl != "none")
    refuse(list, name, "true", concat("excludes ", kImpl, " = ", options.impl, ", the newer form"), "keep one");
  if (options.enable_cuda_graph && options.external_cuda_graph)
    refuse(list, name, "true", "excludes external_cuda_graph", "keep one");
  const std::string key = concat("train.", options.external_cuda_graph ? "external_cuda_graph" : name);
  options.impl = config::newer_keys(key, {"true"}).keys.front().second;
  options.enable_cuda_graph = options.external_cuda_graph = false;
}

// Converts a module name that selects an implementation, or the capture of generation.
static void migrate_word(const std::string& word, CudaGraphOptions& options, std::vector<config::Violation>& list) {
  const bool iteration = word == "full_iteration";
  const Words impls = iteration ? Words{"none", "local", "full_iteration"} : Words{"none", "local"};
  if (!among(options.impl, impls))
    refuse(list, kScope, word, concat("excludes ", kImpl, " = ", options.impl), "keep one");
  if (!is_none_or(options.inference_scope, iteration ? "none" : "block"))
    refuse(list, kScope, word, concat("excludes ", kInference, " = ", *options.inference_scope), "keep one");
  if (iteration) options.impl = word;
  if (!iteration && options.impl != "none") options.inference_scope = "block";
}

CudaGraphOptions migrate_options(CudaGraphOptions options, std::vector<config::Violation>& list) {
  migrate_switches(options, list);
  if (options.scope) {
    if (!options.modules.empty() && options.modules != Words{"full"})
      refuse(list, kScope, concat(options.modules.size(), " modules"), "excludes cuda_graph_scope, its older name",
             "keep one");
    options.modules = *std::move(options.scope);
    options.scope.reset();
  }
  if (among("full", options.modules)) {
    if (options.modules.size() > 1)
      refuse(list, kScope, "full", "must be the only module", "leave the list empty for whole layers");
    options.modules.clear();
  }
  const Words given = std::exchange(options.modules, {});
  Words older;
  for (const std::string& word : given) {
    const bool migrates = word == "full_iteration" || word == "full_iteration_inference";
    if (migrates && !among(word, older)) older.push_back(word);
    if (!migrates) options.modules.push_back(word);
  }
  if (older.size() > 1)
    refuse(list, kScope, concat(older.size(), " older words"), "contradict each other", "keep one");
  if (!older.empty()) migrate_word(older[0], options, list);
  return options;
}

}  // namespace metroplex::megatron

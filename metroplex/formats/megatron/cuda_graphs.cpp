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

static void migrate_switches(CudaGraphOptions& o, std::vector<config::Violation>& list) {
  if (!o.enable_cuda_graph && !o.external_cuda_graph) return;
  const char* name = o.enable_cuda_graph ? "enable_cuda_graph" : "external_cuda_graph";
  if (o.impl != "none")
    refuse(list, name, "true", concat("excludes ", kImpl, " = ", o.impl, ", the newer form"), "keep one");
  if (o.enable_cuda_graph && o.external_cuda_graph)
    refuse(list, name, "true", "excludes external_cuda_graph", "keep one");
  const std::string key = concat("train.", o.external_cuda_graph ? "external_cuda_graph" : name);
  o.impl = config::newer_keys(key, {"true"}).keys.front().second;
  o.enable_cuda_graph = o.external_cuda_graph = false;
}

// Converts a module name that selects an implementation, or the capture of generation.
static void migrate_word(const std::string& word, CudaGraphOptions& o, std::vector<config::Violation>& list) {
  const bool iteration = word == "full_iteration";
  const Words impls = iteration ? Words{"none", "local", "full_iteration"} : Words{"none", "local"};
  if (!among(o.impl, impls)) refuse(list, kScope, word, concat("excludes ", kImpl, " = ", o.impl), "keep one");
  if (!is_none_or(o.inference_scope, iteration ? "none" : "block"))
    refuse(list, kScope, word, concat("excludes ", kInference, " = ", *o.inference_scope), "keep one");
  if (iteration) o.impl = word;
  if (!iteration && o.impl != "none") o.inference_scope = "block";
}

CudaGraphOptions migrated(CudaGraphOptions o, std::vector<config::Violation>& list) {
  migrate_switches(o, list);
  if (o.scope) {
    if (!o.modules.empty() && o.modules != Words{"full"})
      refuse(list, kScope, concat(o.modules.size(), " modules"), "excludes cuda_graph_scope, its older name",
             "keep one");
    o.modules = *std::move(o.scope);
    o.scope.reset();
  }
  if (among("full", o.modules)) {
    if (o.modules.size() > 1)
      refuse(list, kScope, "full", "must be the only module", "leave the list empty for whole layers");
    o.modules.clear();
  }
  const Words given = std::exchange(o.modules, {});
  Words older;
  for (const std::string& word : given) {
    const bool migrates = word == "full_iteration" || word == "full_iteration_inference";
    if (migrates && !among(word, older)) older.push_back(word);
    if (!migrates) o.modules.push_back(word);
  }
  if (older.size() > 1)
    refuse(list, kScope, concat(older.size(), " older words"), "contradict each other", "keep one");
  if (!older.empty()) migrate_word(older[0], o, list);
  return o;
}

}  // namespace metroplex::megatron

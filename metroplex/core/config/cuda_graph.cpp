#include "config/cuda_graph.h"

#include "config/fields.h"
#include "config/config.h"

namespace metroplex::config {

CudaGraphModules cuda_graph_module_set(const std::vector<std::string>& words) {
  CudaGraphModules modules;
  for (const std::string& word : words) {
    if (const auto module = value_of<CudaGraphModule>(word)) modules.add(*module);
  }
  return modules;
}

bool Train::captures_parts() const {
  return cuda_graph_impl == CudaGraphImpl::local || cuda_graph_impl == CudaGraphImpl::transformer_engine;
}

bool Train::captures_iteration() const { return cuda_graph_impl == CudaGraphImpl::full_iteration; }

CudaGraphModules Train::captured_modules() const {
  using enum CudaGraphModule;
  if (!captures_parts()) return {};
  if (cuda_graph_modules.empty()) return {attn, mlp, moe, mamba};
  CudaGraphModules modules = cuda_graph_module_set(cuda_graph_modules);
  const bool routes = modules.has(moe_router) || modules.has(moe_preprocess);
  if (cuda_graph_impl == CudaGraphImpl::local && routes) {
    modules.add(moe_router);
    modules.add(moe_preprocess);
  }
  return modules;
}

static NewerKeys newer_switch(const std::string& key, const std::vector<std::string>& words, const char* impl) {
  NewerKeys newer;
  newer.known = true;
  if (words == std::vector<std::string>{"true"}) {
    newer.keys = {{"train.cuda_graph_impl", impl}};
  } else if (words != std::vector<std::string>{"false"}) {
    newer.problem = key + ": expected true or false";
  }
  return newer;
}

static NewerKeys newer_scope(const std::string& key, const std::vector<std::string>& words) {
  static constexpr const char* kScope = "train.cuda_graph_modules";
  NewerKeys newer;
  newer.known = true;
  std::string list;
  for (const std::string& word : words) {
    const bool whole = word == "full" || word == "full_iteration";
    if (whole && words.size() > 1)
      newer.problem = key + " = " + word + ": cannot be combined with others; leave the others out";
    if (word == "full_iteration") newer.keys = {{"train.cuda_graph_impl", word}};
    if (!whole) list += (list.empty() ? "" : ", ") + quoted(word);
  }
  newer.keys.emplace_back(kScope, "[" + list + "]");
  return newer;
}

NewerKeys newer_keys(const std::string& key, const std::vector<std::string>& words) {
  if (key == "train.enable_cuda_graph") return newer_switch(key, words, text_of(CudaGraphImpl::local));
  if (key == "train.external_cuda_graph") return newer_switch(key, words, text_of(CudaGraphImpl::transformer_engine));
  if (key == "train.cuda_graph_scope") return newer_scope(key, words);
  return {};
}

}  // namespace metroplex::config

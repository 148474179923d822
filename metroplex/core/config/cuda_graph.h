// The parts of a training step that are captured once and then replayed (train.cuda_graph_*), and the translation of
// Megatron's older keys. Modules are parts of a layer; a set of them is a scope.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "config/choice.h"

namespace metroplex::config {

// local, transformer_engine: parts of layers, each with a forward and a backward graph. full_iteration: the full
// step.
enum class CudaGraphImpl { none, local, transformer_engine, full_iteration };
template <>
inline constexpr Word<CudaGraphImpl> kWords<CudaGraphImpl>[] = {
    {CudaGraphImpl::none, "none"},
    {CudaGraphImpl::local, "local"},
    {CudaGraphImpl::transformer_engine, "transformer_engine"},
    {CudaGraphImpl::full_iteration, "full_iteration"}};

enum class CudaGraphModule : uint8_t { attn, mlp, moe, moe_router, moe_preprocess, mamba };
template <>
inline constexpr Word<CudaGraphModule> kWords<CudaGraphModule>[] = {
    {CudaGraphModule::attn, "attn"},
    {CudaGraphModule::mlp, "mlp"},
    {CudaGraphModule::moe, "moe"},
    {CudaGraphModule::moe_router, "moe_router"},
    {CudaGraphModule::moe_preprocess, "moe_preprocess"},
    {CudaGraphModule::mamba, "mamba"}};

class CudaGraphModules {
 public:
  constexpr CudaGraphModules() = default;
  constexpr CudaGraphModules(std::initializer_list<CudaGraphModule> modules) {
    for (const CudaGraphModule module : modules) add(module);
  }
  constexpr void add(CudaGraphModule module) { bits_ |= bit(module); }
  constexpr bool has(CudaGraphModule module) const { return (bits_ & bit(module)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const CudaGraphModules&) const = default;

 private:
  static constexpr unsigned bit(CudaGraphModule module) { return 1U << static_cast<unsigned>(module); }
  unsigned bits_ = 0;
};

// Converts the words of train.cuda_graph_modules; ignores unknown words.
CudaGraphModules cuda_graph_module_set(const std::vector<std::string>& words);

using NewerKey = std::pair<std::string, std::string>;
// Translation of an older Megatron key of section train into current keys. `problem` is set if there is none.
struct NewerKeys {
  bool known = false;
  std::vector<NewerKey> keys;
  std::string problem;
};
// Translates enable_cuda_graph, external_cuda_graph and cuda_graph_scope. `words`: the value, or the items of a list.
NewerKeys newer_keys(const std::string& key, const std::vector<std::string>& words);

}  // namespace metroplex::config

// Activation memory: recomputation, chunking and offload between forward and backward. Also the memory meter.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "config/choice.h"

namespace metroplex::config {

// Save points are the points in a transformer layer at which a tensor is saved for backward. One table maps module
// names to sets of them for memory.recompute_modules, offload and capture.

enum class SavePoint : uint8_t {
  norm,
  qkv,
  latent_heads,
  core_attn,
  proj,
  fc1,
  activation,
  fc2,
  expert_activation,
  shared_fc1,
  shared_activation
};

class SavePointSet {
 public:
  constexpr SavePointSet() = default;
  constexpr SavePointSet(std::initializer_list<SavePoint> points) {
    for (const SavePoint point : points) bits_ |= bit(point);
  }
  constexpr bool has(SavePoint point) const { return (bits_ & bit(point)) != 0; }
  constexpr SavePointSet& operator|=(SavePointSet other) {
    bits_ |= other.bits_;
    return *this;
  }
  constexpr bool operator==(const SavePointSet&) const = default;

 private:
  static constexpr unsigned bit(SavePoint point) { return 1U << static_cast<unsigned>(point); }
  unsigned bits_ = 0;
};

// mla_up_proj: queries, keys and values of latent attention, including their up-projections. mlp and shared_experts:
// the tensors between fc1 and fc2, including fc1's product. activation, moe_act: only the input of fc2. moe has no
// save points, because it recomputes the MoE layer as a unit (nn/recompute.h).
struct Module {
  const char* name;
  SavePointSet points;
};
inline constexpr Module kModules[] = {{"core_attn", {SavePoint::core_attn}},
                                      {"mla_up_proj", {SavePoint::latent_heads}},
                                      {"mlp", {SavePoint::fc1, SavePoint::activation}},
                                      {"layernorm", {SavePoint::norm}},
                                      {"activation", {SavePoint::activation}},
                                      {"moe", {}},
                                      {"moe_act", {SavePoint::expert_activation}},
                                      {"shared_experts", {SavePoint::shared_fc1, SavePoint::shared_activation}}};

enum class Recompute { none, full, selective };
template <>
inline constexpr Word<Recompute> kWords<Recompute>[] = {
    {Recompute::none, "none"}, {Recompute::full, "full"}, {Recompute::selective, "selective"}};

enum class RecomputeMethod { none, uniform, block };
template <>
inline constexpr Word<RecomputeMethod> kWords<RecomputeMethod>[] = {
    {RecomputeMethod::none, ""}, {RecomputeMethod::uniform, "uniform"}, {RecomputeMethod::block, "block"}};

enum class Offload { none, host, file };
template <>
inline constexpr Word<Offload> kWords<Offload>[] = {
    {Offload::none, "none"}, {Offload::host, "host"}, {Offload::file, "file"}};

enum class FitCheck { refuse, warn, off };
template <>
inline constexpr Word<FitCheck> kWords<FitCheck>[] = {
    {FitCheck::refuse, "refuse"}, {FitCheck::warn, "warn"}, {FitCheck::off, "off"}};

struct Memory {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/memory_keys.inc"
#undef KEY

  bool recomputes_all() const { return recompute_granularity == Recompute::full; }
  bool recomputes(const std::string& module) const;
  SavePointSet recomputed_save_points() const;  // over all modules of selective recompute
};

}  // namespace metroplex::config

// What is kept, recomputed, split or moved away between forward and backward (activations), and the memory meter.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "config/choice.h"

namespace metroplex::config {

// The places of a transformer layer at which something is kept, and the names of modules as sets of these places:
// what memory.recompute_modules, offload and capture name is one table.

enum class SavePoint : uint8_t {
  norm,
  qkv,
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

// mlp: what lies between fc1 and fc2, with fc1's product; shared_experts likewise. activation, moe_act: the input of
// fc2 alone. moe names no places: the whole layer of experts runs again (nn/recompute.h).
struct Module {
  const char* name;
  SavePointSet points;
};
inline constexpr Module kModules[] = {{"core_attn", {SavePoint::core_attn}},
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

// Its keys, each with type, default and help: memory_keys.inc.
struct Memory {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/memory_keys.inc"
#undef KEY

  bool recomputes_all() const { return recompute_granularity == Recompute::full; }
  bool recomputes(const std::string& module) const;
  SavePointSet recomputed_save_points() const;  // of all modules that selective recomputes
};

}  // namespace metroplex::config

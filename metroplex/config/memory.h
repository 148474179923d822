// What is kept, recomputed, split or moved away between forward and backward (activations), and the memory meter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/choice.h"
#include "config/save_point.h"

namespace metroplex::config {

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

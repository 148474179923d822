// The places of a transformer layer at which something is kept, and the names of modules as sets of these places:
// what memory.recompute_modules, offload and capture name is one table.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace metroplex::config {

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

}  // namespace metroplex::config

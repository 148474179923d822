// The places of a transformer layer at which something is kept, and the names of modules as sets of these places:
// what memory.recompute_modules, offload and capture name is one table.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace metroplex::config {

enum class Leaf : uint8_t {
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

class LeafSet {
 public:
  constexpr LeafSet() = default;
  constexpr LeafSet(std::initializer_list<Leaf> leaves) {
    for (const Leaf leaf : leaves) bits_ |= bit(leaf);
  }
  constexpr bool has(Leaf leaf) const { return (bits_ & bit(leaf)) != 0; }
  constexpr LeafSet& operator|=(LeafSet other) {
    bits_ |= other.bits_;
    return *this;
  }
  constexpr bool operator==(const LeafSet&) const = default;

 private:
  static constexpr unsigned bit(Leaf leaf) { return 1U << static_cast<unsigned>(leaf); }
  unsigned bits_ = 0;
};

// mlp: what lies between fc1 and fc2, with fc1's product; shared_experts likewise. activation, moe_act: the input of
// fc2 alone. moe names no places: the whole layer of experts runs again (nn/recompute.h).
struct Module {
  const char* name;
  LeafSet leaves;
};
inline constexpr Module kModules[] = {{"core_attn", {Leaf::core_attn}},
                                      {"mlp", {Leaf::fc1, Leaf::activation}},
                                      {"layernorm", {Leaf::norm}},
                                      {"activation", {Leaf::activation}},
                                      {"moe", {}},
                                      {"moe_act", {Leaf::expert_activation}},
                                      {"shared_experts", {Leaf::shared_fc1, Leaf::shared_activation}}};

}  // namespace metroplex::config

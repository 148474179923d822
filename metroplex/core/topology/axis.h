// Table of the parallelism axes. The dense grid (attention, embeddings, MLPs) has tp, gtp, cp, dp and pp. The expert
// grid (routed experts) has etp, ep, edp and pp over the same ranks. A set of axes identifies a kind of group: {dp,
// cp} groups the ranks that differ only in dp and cp.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace metroplex::topology {

enum class Axis : uint8_t { tp, gtp, cp, dp, pp, etp, ep, edp };
inline constexpr int kNumAxes = 8;

struct AxisInfo {
  Axis axis;
  const char* name;
  bool dense;
  bool expert;
  const char* meaning;
};

inline constexpr AxisInfo kAxes[kNumAxes] = {
    {Axis::tp, "tp", true, false, "tensor parallel"},
    {Axis::gtp, "gtp_remat", true, false, "weights sharded inside data parallel"},
    {Axis::cp, "cp", true, false, "context parallel"},
    {Axis::dp, "dp", true, false, "data parallel"},
    {Axis::pp, "pp", true, true, "pipeline parallel"},
    {Axis::etp, "etp", false, true, "expert tensor parallel"},
    {Axis::ep, "ep", false, true, "expert parallel"},
    {Axis::edp, "edp", false, true, "expert data parallel"},
};

inline constexpr const AxisInfo& info(Axis axis) { return kAxes[static_cast<int>(axis)]; }
inline constexpr const char* name(Axis axis) { return info(axis).name; }

class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(1u << static_cast<int>(axis)) {}
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis axis : axes) insert(axis);
  }
  constexpr void insert(Axis axis) { bits_ |= 1u << static_cast<int>(axis); }
  constexpr bool contains(Axis axis) const { return (bits_ >> static_cast<int>(axis) & 1u) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const AxisSet&) const = default;
  constexpr AxisSet operator|(AxisSet other) const { return of(bits_ | other.bits_); }
  constexpr AxisSet operator-(AxisSet other) const { return of(bits_ & ~other.bits_); }

 private:
  static constexpr AxisSet of(unsigned bits) {
    AxisSet axes;
    axes.bits_ = bits;
    return axes;
  }

  unsigned bits_ = 0;
};

// Returns the axis with the lower-case `name`. Throws with the nearest name if unknown.
Axis parse_axis(const std::string& name);
// Parses names joined by '-', in any letter case: "dp-cp" -> {dp, cp}.
AxisSet parse_axes(const std::string& names);
// Returns Megatron's spelling of a kind of group: "tp-dp-cp", "etp-ep-pp".
std::string to_string(AxisSet axes);
std::vector<std::string> split_names(const std::string& text);

}  // namespace metroplex::topology

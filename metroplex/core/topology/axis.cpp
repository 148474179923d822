#include "topology/axis.h"

#include <cctype>

#include "base/error.h"

namespace metroplex::topology {

std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names(1);
  for (unsigned char letter : text) {
    if (letter == '-') {
      names.emplace_back();
    } else {
      names.back() += static_cast<char>(std::tolower(letter));
    }
  }
  return names;
}

Axis parse_axis(const std::string& name) {
  std::vector<std::string> known;
  for (const AxisInfo& axis : kAxes) {
    if (name == axis.name) return axis.axis;
    known.emplace_back(axis.name);
  }
  const std::string nearest = base::nearest_name(name, known);
  base::throw_error(
      "topology",
      base::concat("'", name, "' is not an axis", nearest.empty() ? "" : "; did you mean '" + nearest + "'?",
                   nearest.empty() ? "; the axes are" : " The axes are", " tp, gtp_remat, cp, dp, pp, etp, ep, edp"));
}

AxisSet parse_axes(const std::string& names) {
  AxisSet axes;
  for (const std::string& name : split_names(names)) {
    if (name == "mp") {  // Megatron's model-parallel group
      axes.insert(Axis::tp);
      axes.insert(Axis::pp);
    } else {
      axes.insert(parse_axis(name));
    }
  }
  return axes;
}

std::string to_string(AxisSet axes) {
  std::string text;
  for (Axis axis : {Axis::tp, Axis::gtp, Axis::dp, Axis::cp, Axis::etp, Axis::ep, Axis::edp, Axis::pp}) {
    if (axes.contains(axis)) text += (text.empty() ? "" : "-") + std::string(name(axis));
  }
  return text;
}

}  // namespace metroplex::topology

// The letters of a pipeline layout string, unrolled: "Ett|(t|)*2tL" -> {"Ett", "t", "t", "tL"}. Arithmetic only;
// what the stages mean is plan/'s.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace metroplex::config {

// One string of E (embedding), t (layer), m (multi-token prediction), L (loss) a stage; `problem` says why there is
// none (an unknown letter, parentheses that do not close or nest, a repetition too large to be meant).
std::optional<std::vector<std::string>> unrolled_layout(const std::string& layout, std::string& problem);

}  // namespace metroplex::config

#include "text/jinja/interpreter.h"

#include "base/error.h"

namespace metroplex::text::jinja {
namespace {

constexpr size_t kShort = 32;  // bytes; up to this size the quadratic search is fast enough

}  // namespace

Search::Search(Interpreter& run, std::string_view part, bool last) : part_(part), last_(last) {
  run.charge(part.size());
  if (part.size() <= kShort) return;
  const auto at = [&](size_t i) { return last_ ? part_[part_.size() - 1 - i] : part_[i]; };
  borders_.assign(part.size(), 0);
  uint32_t border = 0;
  for (size_t i = 1; i < part.size(); ++i) {
    while (border > 0 && at(i) != at(border)) border = borders_[border - 1];
    if (at(i) == at(border)) ++border;
    borders_[i] = border;
  }
}

size_t Search::in(std::string_view text) const {
  if (borders_.empty()) return last_ ? text.rfind(part_) : text.find(part_);
  const auto at = [](std::string_view of, bool backwards, size_t i) {
    return backwards ? of[of.size() - 1 - i] : of[i];
  };
  size_t matched = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = at(text, last_, i);
    while (matched > 0 && c != at(part_, last_, matched)) matched = borders_[matched - 1];
    if (c == at(part_, last_, matched)) ++matched;
    if (matched == part_.size()) return last_ ? text.size() - 1 - i : i + 1 - matched;
  }
  return std::string_view::npos;
}

}  // namespace metroplex::text::jinja

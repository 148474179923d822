#include "text/byte_trie.h"

#include <algorithm>

namespace metroplex::text {
namespace {

constexpr size_t kBytes = 256;

// Sorted entries that share their first `depth` bytes.
struct Range {
  size_t begin, end, depth;
  int32_t node;
};

}  // namespace

ByteTrie::ByteTrie(Entries entries) : units_(kBytes + 1) {
  std::sort(entries.begin(), entries.end());
  units_[kRoot].parent = kRoot;
  std::vector<Range> ranges{{0, entries.size(), 0, kRoot}};
  std::vector<unsigned char> labels;
  for (size_t done = 0; done < ranges.size(); ++done) {
    Range range = ranges[done];
    while (range.begin < range.end && entries[range.begin].first.size() == range.depth) {
      units_[static_cast<size_t>(range.node)].value = entries[range.begin++].second;
    }
    labels.clear();
    const auto label = [&](size_t i) { return static_cast<unsigned char>(entries[i].first[range.depth]); };
    for (size_t i = range.begin; i < range.end; ++i) {
      if (labels.empty() || labels.back() != label(i)) labels.push_back(label(i));
    }
    if (labels.empty()) continue;
    const int32_t base = find_base(labels);
    units_[static_cast<size_t>(range.node)].base = base;
    for (size_t begin = range.begin; begin < range.end;) {
      size_t end = begin;
      while (end < range.end && label(end) == label(begin)) ++end;
      const int32_t node = base + label(begin);
      units_[static_cast<size_t>(node)].parent = range.node;
      ranges.push_back({begin, end, range.depth + 1, node});
      begin = end;
    }
  }
  units_.shrink_to_fit();
}

// Finds the first base for which the units of all children are free. kBytes units after it are allocated, so that
// child() can read the unit of any byte.
int32_t ByteTrie::find_base(const std::vector<unsigned char>& labels) {
  size_t first_free = 0, taken = 0, at = std::max<size_t>(search_from_, size_t{labels[0]} + 1);
  const size_t start = at;
  for (;; ++at) {
    if (units_.size() < at + 2 * kBytes) units_.resize(units_.size() * 2 + 2 * kBytes);
    if (units_[at].parent >= 0) {
      ++taken;
      continue;
    }
    if (first_free == 0) first_free = at;
    const size_t base = at - labels[0];
    const auto is_free = [&](unsigned char label) { return units_[base + label].parent < 0; };
    if (std::all_of(labels.begin(), labels.end(), is_free)) break;
  }
  // Units far before `at` are mostly taken; scanning their last holes for every node would be quadratic.
  const bool far = at - start > 16 * kBytes, full = taken * 20 >= (at - start) * 19;
  search_from_ = far ? at - kBytes : full ? at : std::max(search_from_, first_free);
  return static_cast<int32_t>(at - labels[0]);
}

ByteTrie::Match ByteTrie::longest_prefix(std::string_view text) const {
  Match match;
  int32_t node = kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node < 0) break;
    if (value(node) >= 0) match = {i + 1, value(node)};
  }
  return match;
}

}  // namespace metroplex::text

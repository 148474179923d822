// A map from strings to values, traversed byte by byte, as a double array (Aoe, 1989). The child of node n for byte b
// is unit base[n] + b if the parent of that unit is n.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace metroplex::text {

class ByteTrie {
 public:
  using Entries = std::vector<std::pair<std::string_view, int32_t>>;

  ByteTrie() : ByteTrie(Entries{}) {}
  // Values must be >= 0 and strings not empty. Only one value of a duplicate string is stored.
  explicit ByteTrie(Entries entries);

  static constexpr int32_t kRoot = 0;

  // Returns -1 for no child.
  int32_t child(int32_t node, unsigned char byte) const {
    const int32_t at = units_[static_cast<size_t>(node)].base + byte;
    return units_[static_cast<size_t>(at)].parent == node ? at : -1;
  }
  // Returns the value of the string that ends at `node`; -1 if none ends there.
  int32_t value(int32_t node) const { return units_[static_cast<size_t>(node)].value; }

  // The longest string of the trie that is a prefix of `text`; size in bytes, 0 if none.
  struct Match {
    size_t size = 0;
    int32_t value = -1;
  };
  Match longest_prefix(std::string_view text) const;

  bool begins_with(unsigned char byte) const { return child(kRoot, byte) >= 0; }

 private:
  struct Unit {
    int32_t base = 1;     // a node without children points at units of other nodes
    int32_t parent = -1;  // -1: free
    int32_t value = -1;
  };
  int32_t find_base(const std::vector<unsigned char>& labels);

  std::vector<Unit> units_;
  size_t search_from_ = 1;  // while building: few units before it are free
};

}  // namespace metroplex::text

// Strings with a value each, followed byte by byte in a double array (Aoe, 1989): the child of node n by byte b is
// unit base[n] + b, if that says n is its parent.
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
  // Values must not be negative, strings not empty; of a string given twice one value is kept.
  explicit ByteTrie(Entries entries);

  static constexpr int32_t kRoot = 0;

  // The child of `node`, -1 where there is none.
  int32_t child(int32_t node, unsigned char byte) const {
    const int32_t at = units_[static_cast<size_t>(node)].base + byte;
    return units_[static_cast<size_t>(at)].parent == node ? at : -1;
  }
  // Of the string that ends at `node`; -1 where none does.
  int32_t value(int32_t node) const { return units_[static_cast<size_t>(node)].value; }

  // The longest string that `text` begins with: bytes (0 for none) and value.
  struct Match {
    size_t size = 0;
    int32_t value = -1;
  };
  Match longest_prefix(std::string_view text) const;

  // A string of the trie begins with this byte.
  bool begins_with(unsigned char byte) const { return child(kRoot, byte) >= 0; }

 private:
  struct Unit {
    int32_t base = 1;     // a node without children points at places that are not its own
    int32_t parent = -1;  // -1: free
    int32_t value = -1;
  };
  int32_t find_base(const std::vector<unsigned char>& labels);

  std::vector<Unit> units_;
  size_t search_from_ = 1;  // while building: hardly anything before it is free
};

}  // namespace metroplex::text

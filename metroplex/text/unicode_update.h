// Code points that Unicode 15 to 16 assigned, with their general category. The distribution's PCRE2 and utf8proc
// know Unicode 14 and before; tokenizers of today split text by Unicode 16. This table is the difference.
#pragma once

#include <span>

namespace metroplex::text {

struct CategoryRange {
  char32_t first, last;
  char category[3];
};

// Ascending, disjoint.
std::span<const CategoryRange> category_updates();

// The range that holds `code_point`, or null.
const CategoryRange* find_category_update(char32_t code_point);

}  // namespace metroplex::text

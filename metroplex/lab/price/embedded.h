// Files of machines/, embedded by the build.
#pragma once

#include <span>
#include <string_view>

namespace metroplex::price {

struct EmbeddedFile {
  std::string_view name;  // without its extension
  std::string_view text;
};
std::span<const EmbeddedFile> embedded_machines();

}  // namespace metroplex::price

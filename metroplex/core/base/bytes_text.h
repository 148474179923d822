// Formats bytes for display: "812 B", "1.5 GiB".
#pragma once

#include <string>

namespace metroplex::base {

std::string bytes_text(double bytes);

}  // namespace metroplex::base

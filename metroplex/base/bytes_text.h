// Bytes as a person reads them: "812 B", "1.5 GiB".
#pragma once

#include <string>

namespace metroplex::base {

std::string bytes_text(double bytes);

}  // namespace metroplex::base

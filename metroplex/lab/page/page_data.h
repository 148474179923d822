// Collects the numbers that the page draws, as JSON for the scripts in files/.
#pragma once

#include <vector>

#include "page/run_file.h"

namespace metroplex::page {

// Points of a curve on the page. More curves have fewer, so that the page stays below 3 MB.
size_t points_of_curve(size_t runs);

Json page_data(const std::vector<const RunData*>& runs);

}  // namespace metroplex::page

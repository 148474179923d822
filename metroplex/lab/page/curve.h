// Shortens and smooths series for drawing.
#pragma once

#include <cstddef>

#include "page/run_file.h"

namespace metroplex::page {

// Returns at most `most` entries (8 or more): the first, the last, and of each bucket of neighboring entries the
// smallest and the largest value, and a NaN if it has one.
Series shorten(const Series& series, size_t most);

// Returns the exponential moving average with alpha = 2 / (steps + 1), corrected for its start. NaNs stay NaN and do
// not enter the average.
Series smooth(const Series& series, int64_t steps);
// Returns the window of the average for a series of this size: a fiftieth of it, 1 to 1,000.
int64_t smoothing_steps(size_t size);

}  // namespace metroplex::page

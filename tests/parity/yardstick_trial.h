// Tests the yardstick on made-up programs. Correct ones with random errors hardly ever fail, for any correlation of
// the errors within a tensor; wrong ones fail.
#pragma once

namespace metroplex::parity {

// Prints each result on stdout. Returns true if all are as expected.
bool try_yardstick();

}  // namespace metroplex::parity

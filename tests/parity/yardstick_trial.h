// The yardstick held against programs that are made up: right ones, whose errors are drawn, hardly ever fail, however
// much the errors of a tensor's elements have in common; and wrong ones do.
#pragma once

namespace metroplex::parity {

// Says on stdout how each went. True when all did as they should.
bool try_yardstick();

}  // namespace metroplex::parity

// Time that a thread waits for a CPU core, from the kernel's scheduler.
#pragma once

namespace metroplex::base {

// Returns the seconds that the calling thread was ready to run without a core, since its start. Returns 0 if the
// kernel does not count them.
double seconds_without_core();

}  // namespace metroplex::base

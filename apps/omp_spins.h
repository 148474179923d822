// How long a thread of OpenMP spins before it sleeps.
#pragma once

namespace metroplex::apps {

// libgomp's own 300,000 rounds are up to 14 ms: where cores are shared, a waiting thread takes that long from the one
// it waits for, at every loop. Sets GOMP_SPINCOUNT to about a tenth of a millisecond, unless the environment says
// something of it. libgomp reads it when it is loaded, so a program calls this before it starts one with tensors.
// Returns whether it set it.
bool spin_briefly();

}  // namespace metroplex::apps

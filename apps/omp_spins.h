// The spin time of OpenMP threads before they sleep.
#pragma once

namespace metroplex::apps {

// libgomp's default of 300,000 rounds takes up to 14 ms. On shared cores a waiting thread delays the thread that it
// waits for by this time, at every loop. Sets GOMP_SPINCOUNT to about 0.1 ms unless the environment sets the spin
// time. libgomp reads the variable when it is loaded, so a program must call this before it starts a program with
// tensors. Returns whether it set the variable.
bool spin_briefly();

}  // namespace metroplex::apps

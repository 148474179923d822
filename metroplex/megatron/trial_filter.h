// Inside the room: what the kernel lets the trial run of a launch script do. It reads files, makes pipes and copies
// of itself, and computes. Three kinds of calls are asked of us (trial.cpp answers): starting a program, opening a
// file in a way that could change it, and making a process. Everything else does not exist there, and all that it
// starts inherits this.
#pragma once

#include <seccomp.h>

namespace metroplex::megatron {

// To be loaded by the process that becomes bash; `hand_over` is the socket that it may send the listener through.
// Null where libseccomp cannot express it here.
scmp_filter_ctx make_trial_filter(int hand_over);

}  // namespace metroplex::megatron

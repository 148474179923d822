// Messages for std::bad_alloc and similar errors, and for a failed thread start.
#pragma once

namespace metroplex::base {

inline constexpr const char* kOutOfMemory =
    "out of memory: the machine, or a limit of this process (ulimit -v, a container's), gives no more; metroplex "
    "train --dry-run shows how much memory a run needs, and which settings need less";
inline constexpr const char* kNoMoreThreads =
    "a limit of this process (ulimit -u or -v) or of its container (pids.max) gives no more";

}  // namespace metroplex::base

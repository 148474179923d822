// A backend that tells a Recorder of every call and hands it on. A call that is under way when it returns is two
// operations: its start, and "wait", behind which what it writes may be read.
#pragma once

#include <memory>
#include <string>

#include "comm/backends/backend.h"
#include "cuda/launch_point.h"

namespace metroplex::comm {

// Operations are named as the functions of GroupBackend, with `group` as their group; all but barrier and wait have
// their tensors as reads and writes. `recorder` outlives the backend and all that is under way.
std::shared_ptr<GroupBackend> make_recording_backend(std::string group, cuda::Recorder& recorder,
                                                     std::shared_ptr<GroupBackend> inner);

}  // namespace metroplex::comm

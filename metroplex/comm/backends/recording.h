// Backends that tell a Recorder of every call: one hands it on to another backend, one (mirror) is a rank alone.
#pragma once

#include <memory>
#include <string>

#include "comm/backends/backend.h"
#include "cuda/launch_point.h"

namespace metroplex::comm {

// Operations are named as the functions of GroupBackend, with `group` as their group; all but barrier and wait have
// their tensors as reads and writes. A call that is under way when it returns is two operations: its start, and
// "wait", behind which what it writes may be read. `recorder` outlives the backend and all that is under way.
std::shared_ptr<GroupBackend> make_recording_backend(std::string group, cuda::Recorder& recorder,
                                                     std::shared_ptr<GroupBackend> inner);

// A rank that is alone and takes every other member for its equal: what it brings is what all bring. So a rank of any
// number of ranks can be made and asked what it would hold; nothing is moved, and sums are not made. `recorder` (may
// be null) is told of every call of the group, and of no wait: there is none.
std::shared_ptr<GroupBackend> make_mirror_backend(std::string group, int size, cuda::Recorder* recorder);

}  // namespace metroplex::comm

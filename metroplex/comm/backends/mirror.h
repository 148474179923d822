// A rank that is alone and takes every other member for its equal: what it brings is what all bring. So a rank of any
// number of ranks can be made and asked what it would hold; nothing is moved, and sums are not made.
#pragma once

#include <memory>
#include <string>

#include "comm/backends/backend.h"
#include "cuda/launch_point.h"

namespace metroplex::comm {

// `recorder` (may be null) is told of every call of the group, and of no wait: there is none.
std::shared_ptr<GroupBackend> make_mirror_backend(std::string group, int size, cuda::Recorder* recorder);

}  // namespace metroplex::comm

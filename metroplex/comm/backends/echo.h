// A rank that is alone and takes every other member for its equal: what it brings is what all bring. So a rank of any
// number of ranks can be made and asked what it would hold; nothing is moved, and sums are not made.
#pragma once

#include <memory>

#include "comm/backends/backend.h"

namespace metroplex::comm {

std::shared_ptr<GroupBackend> make_echo_backend(int size);

}  // namespace metroplex::comm

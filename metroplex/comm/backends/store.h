// The rendezvous store, and the meeting of ranks in it: each says that it has started, or why it cannot. Includes
// c10d.
#pragma once

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <optional>
#include <string>
#include <vector>

#include "comm/backends/gloo.h"

namespace metroplex::comm {

// Served by rank 0, or by the launcher's agent. Throws base::Error("comm") when it cannot be, or is not there within
// the timeout.
c10::intrusive_ptr<c10d::Store> open_store(const GlooOptions& options);

std::vector<uint8_t> as_bytes(const std::string& text);
std::optional<std::string> look_up(c10d::Store& store, const std::string& key);

// Returns when all ranks have come here with the same backend. Throws PeerFailure with the cause when one refused,
// and base::Error("comm") that names who is missing at the timeout.
void meet(c10d::Store& store, const GlooOptions& options);
// Instead of meet(): all others throw there. Rank 0, whose store it is, returns when they have heard of it, or after
// 20 s.
void refuse(c10d::Store& store, const GlooOptions& options, const std::string& cause);

}  // namespace metroplex::comm

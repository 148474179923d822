// A failure that another rank caused: what() names that rank, its coordinates and its cause. Whoever has to say
// which rank failed first looks for an exception that is not a PeerFailure.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "base/error.h"

namespace metroplex::comm {

class PeerFailure final : public base::Error {
 public:
  explicit PeerFailure(const std::string& message) : base::Error("comm", message) {}
};

// A global rank in words, e.g. "rank 3 (tp 1 pp 0 dp 1)".
using DescribeRank = std::function<std::string(int rank)>;
std::string describe_plainly(int rank);

bool is_peer_failure(const std::exception_ptr& exception);

// What an exception says, without libtorch's backtrace.
std::string cause_of(const std::exception_ptr& exception);

// "rank 3 (tp 1) failed: <cause>" as the same kind of exception: a base::Error keeps its room, a PeerFailure stays as
// it is (it names the rank that failed already).
std::exception_ptr with_rank(const std::exception_ptr& exception, const std::string& rank_in_words);

}  // namespace metroplex::comm

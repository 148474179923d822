// A failure caused by another rank. what() contains that rank, its coordinates and the cause. The rank that failed
// first is the one whose exception is not a PeerFailure.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "base/error.h"

namespace metroplex::comm {

class PeerFailure final : public base::Error {
 public:
  explicit PeerFailure(const std::string& message) : base::Error("comm", message) {}
};

// A libtorch error on a rank. what() is one line; trace() is the same text with libtorch's backtrace.
class TorchFailure final : public base::Error {
 public:
  TorchFailure(const char* module, const std::string& message, std::string trace)
      : base::Error(module, message), trace_(std::move(trace)) {}
  const std::string& trace() const { return trace_; }

 private:
  std::string trace_;
};

// Formats a global rank, e.g. "rank 3 (tp 1 pp 0 dp 1)".
using RankFormatter = std::function<std::string(int rank)>;
std::string format_rank(int rank);

bool is_peer_failure(const std::exception_ptr& exception);

// Returns the message of an exception, without libtorch's backtrace.
std::string failure_cause(const std::exception_ptr& exception);

// Prefixes the message with the rank: "rank 3 (tp 1) failed: <cause>". A base::Error keeps its module, a libtorch
// error becomes a TorchFailure. A PeerFailure is returned unchanged, because it already names the failed rank.
std::exception_ptr with_rank(const std::exception_ptr& exception, const std::string& rank_name);

}  // namespace metroplex::comm

// A failure that another rank caused: what() names that rank, its coordinates and its cause. Whoever has to say
// which rank failed first looks for an exception that is not a PeerFailure.
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

// An error of libtorch in a rank: what() is one line, trace() is the same with libtorch's backtrace.
class TorchFailure final : public base::Error {
 public:
  TorchFailure(const char* room, const std::string& message, std::string trace)
      : base::Error(room, message), trace_(std::move(trace)) {}
  const std::string& trace() const { return trace_; }

 private:
  std::string trace_;
};

// A global rank in words, e.g. "rank 3 (tp 1 pp 0 dp 1)".
using DescribeRank = std::function<std::string(int rank)>;
std::string describe_plainly(int rank);

bool is_peer_failure(const std::exception_ptr& exception);

// What an exception says, without libtorch's backtrace.
std::string cause_of(const std::exception_ptr& exception);

// "rank 3 (tp 1) failed: <cause>" as the same kind of exception: a base::Error keeps its room, an error of libtorch
// becomes a TorchFailure, a PeerFailure stays as it is (it names the rank that failed already).
std::exception_ptr with_rank(const std::exception_ptr& exception, const std::string& rank_in_words);

}  // namespace metroplex::comm

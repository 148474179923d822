// Counts calls and bytes of every operation, by group and operation; moves nothing, or hands on to a real backend.
// Bytes of one call on one rank: all_reduce, broadcast: the tensor; all_gather: the output; reduce_scatter,
// all_to_all, gather: the input; send, recv: the tensor; exchange_rows: the counts and `capacity` rows for each
// member, which is the most that it moves; barrier: 0.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "comm/backends/backend.h"

namespace metroplex::comm {

class Traffic {
 public:
  struct Count {
    int64_t calls = 0;
    int64_t bytes = 0;
  };
  void add(const std::string& group, const std::string& operation, int64_t bytes);
  // Zero for what never happened. `operation`: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all,
  // exchange_rows, gather, send, recv, barrier.
  Count of(const std::string& group, const std::string& operation) const;
  std::map<std::pair<std::string, std::string>, Count> counts() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, Count> counts_;
};

// `inner` null: outputs stay as they are.
std::shared_ptr<GroupBackend> make_counting_backend(std::string group, std::shared_ptr<Traffic> traffic,
                                                    std::shared_ptr<GroupBackend> inner = nullptr);

}  // namespace metroplex::comm

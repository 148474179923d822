// Counts calls and bytes per group and operation. Calls are forwarded to a real backend, or move nothing.
// Bytes of one call on one rank:
//   - all_reduce, broadcast, send, recv: the tensor
//   - all_gather: the output
//   - reduce_scatter, all_to_all, gather: the input
//   - exchange_rows: the counts and `capacity` rows per member, which is the upper bound
//   - barrier: 0
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
  // Returns zeros if there was no such call. `operation`: all_reduce, all_gather, reduce_scatter, broadcast,
  // all_to_all, exchange_rows, gather, send, recv, barrier.
  Count of(const std::string& group, const std::string& operation) const;
  std::map<std::pair<std::string, std::string>, Count> counts() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, Count> counts_;
};

// If `inner` is null, outputs are left unchanged.
std::shared_ptr<GroupBackend> make_counting_backend(std::string group, std::shared_ptr<Traffic> traffic,
                                                    std::shared_ptr<GroupBackend> inner = nullptr);

}  // namespace metroplex::comm

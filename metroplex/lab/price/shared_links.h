// Start and end times of the collectives of one rank, which share the bandwidth of its links. Other members of their
// groups are assumed to issue them at the same times.
//
// A transfer starts when it was issued and the previous one of its communicator has ended. After its latency, it uses
// the links of its domains. If the transfers of a domain would need more than the bandwidth, each gets the same
// fraction of its full rate (processor sharing); a transfer over several domains moves at the lowest of its rates.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "price/link.h"
#include "price/link_timeline.h"

namespace metroplex::price {

struct SharedTransfer {
  CollectiveCost cost;
  double issued_s = 0;
  double left_s = 0;  // of the transfer alone, without latency
  LinkUse use{-1, -1};
};
using SharedTransferPtr = std::shared_ptr<SharedTransfer>;

class SharedLinks {
 public:
  explicit SharedLinks(const Cluster& cluster) : cluster_(cluster) {}
  // `communicator` identifies the transfers that run one after another. Times must not decrease between calls.
  SharedTransferPtr issue(const void* communicator, double at_s, const CollectiveCost& cost);
  // Returns the start and the end of a transfer. Later issues must not be before the end.
  LinkUse finish(const SharedTransfer& transfer);

 private:
  // Moves all transfers until `until_s`, or until one of them ends its latency or ends.
  void advance(double until_s);
  std::vector<SharedTransfer*> heads() const;  // the first transfer of each communicator
  bool uses_links(const SharedTransfer& transfer) const;
  // Full-rate seconds per second that `heads` need on each domain.
  std::vector<double> demand(const std::vector<SharedTransfer*>& heads) const;

  const Cluster& cluster_;
  double now_s_ = 0;
  std::map<const void*, std::deque<SharedTransferPtr>> queues_;
};

}  // namespace metroplex::price

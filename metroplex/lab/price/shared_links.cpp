#include "price/shared_links.h"

#include <algorithm>
#include <limits>

namespace metroplex::price {

SharedTransferPtr SharedLinks::issue(const void* communicator, double at_s, const CollectiveCost& cost) {
  while (now_s_ < at_s) advance(at_s);
  auto transfer = std::make_shared<SharedTransfer>(SharedTransfer{cost, at_s, cost.transfer_s()});
  std::deque<SharedTransferPtr>& queue = queues_[communicator];
  queue.push_back(transfer);
  if (queue.size() == 1) queue.front()->use.start_s = at_s;
  return transfer;
}

LinkUse SharedLinks::finish(const SharedTransfer& transfer) {
  while (transfer.use.end_s < 0) advance(std::numeric_limits<double>::infinity());
  return transfer.use;
}

bool SharedLinks::uses_links(const SharedTransfer& transfer) const {
  return now_s_ >= transfer.use.start_s + transfer.cost.latency_s;
}

std::vector<SharedTransfer*> SharedLinks::heads() const {
  std::vector<SharedTransfer*> heads;
  for (const auto& [communicator, queue] : queues_) {
    if (!queue.empty()) heads.push_back(queue.front().get());
  }
  return heads;
}

std::vector<double> SharedLinks::demand(const std::vector<SharedTransfer*>& heads) const {
  std::vector<double> demand(cluster_.domains.size());
  for (const SharedTransfer* head : heads) {
    if (head->left_s <= 0 || !uses_links(*head)) continue;
    for (size_t domain = 0; domain < demand.size(); ++domain) {
      if (cluster_.domains[domain].shared) demand[domain] += head->cost.link_s[domain] / head->cost.transfer_s();
    }
  }
  return demand;
}

void SharedLinks::advance(double until_s) {
  const std::vector<SharedTransfer*> moving = heads();
  const std::vector<double> needed = demand(moving);
  const auto rate = [&](const SharedTransfer& transfer) {
    double rate = 1;
    for (size_t domain = 0; domain < needed.size(); ++domain) {
      if (transfer.cost.link_s[domain] > 0) rate = std::min(rate, 1 / std::max(1.0, needed[domain]));
    }
    return rate;
  };
  const auto next_change = [&](const SharedTransfer& transfer) {
    return uses_links(transfer) ? now_s_ + transfer.left_s / rate(transfer)
                                : transfer.use.start_s + transfer.cost.latency_s;
  };
  double next = until_s;
  for (const SharedTransfer* transfer : moving) next = std::min(next, next_change(*transfer));
  for (SharedTransfer* transfer : moving) {
    if (!uses_links(*transfer)) continue;
    const bool ends = next_change(*transfer) <= next;  // without a rest from rounding
    transfer->left_s = ends ? 0 : transfer->left_s - rate(*transfer) * (next - now_s_);
    if (ends) transfer->use.end_s = next;
  }
  now_s_ = next;
  for (auto& [communicator, queue] : queues_) {
    if (queue.empty() || queue.front()->use.end_s < 0) continue;
    queue.pop_front();
    if (!queue.empty()) queue.front()->use.start_s = now_s_;
  }
}

}  // namespace metroplex::price

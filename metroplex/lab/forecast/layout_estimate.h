// A fast estimate of time and memory of a layout: the costs of one layer, from traces of one and of two layers
// without pipeline and data parallelism, and formulas for the rest. search.h uses it to order layouts.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "forecast/search.h"

namespace metroplex::forecast {

// Costs of a microbatch on a rank.
struct LayerCosts {
  double forward_s = 0, backward_s = 0;                   // of a layer, with exposed communication of the layer
  double exposed_s = 0;                                   // included: exposed communication of both passes
  std::vector<double> link_s;                             // of the layer's collectives, by domain of the cluster
  double ends_s = 0;                                      // embedding, head and loss
  double activations = 0, border = 0;                     // bytes; of a layer, and between stages
  double params = 0, expert_params = 0, ends_params = 0;  // elements of a layer; of the ends
};

struct LayoutEstimate {
  double seconds = 0;
  double bytes = 0;  // without the memory that only a layer's own passes need: about a lower bound
};

class LayoutEstimator {
 public:
  // `request` must outlive it.
  explicit LayoutEstimator(const PlanRequest& request) : request_(request) {}
  // Thread-safe. Throws base::Error if the rules refuse the layer.
  LayoutEstimate estimate(const Layout& layout);

 private:
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, config::Recompute>;
  LayerCosts costs(const Layout& layout);
  LayerCosts measure(const Layout& layout) const;
  // Cost of one byte in a group of `count` ranks, `stride` apart.
  price::CollectiveCost byte_cost(const std::string& operation, int64_t count, int64_t stride);

  const PlanRequest& request_;
  std::mutex mutex_;
  std::map<Key, std::optional<LayerCosts>> known_;  // nullopt: refused
  std::map<std::tuple<std::string, int64_t, int64_t>, price::CollectiveCost> byte_costs_;
};

}  // namespace metroplex::forecast

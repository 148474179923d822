// A fast estimate of time and memory of a layout: the costs of its layers (layer_costs.h) and formulas for pipeline
// and data parallelism. search.h uses it to order layouts.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <variant>

#include "base/error.h"
#include "forecast/layer_costs.h"
#include "forecast/search.h"

namespace metroplex::forecast {

struct LayoutEstimate {
  double seconds = 0;
  double bytes = 0;  // without the memory that only a layer's own passes need: about a lower bound
};

class LayoutEstimator {
 public:
  // `request` must outlive it.
  explicit LayoutEstimator(const PlanRequest& request)
      : request_(request), forms_(find_layer_forms(request.run.config)) {}
  // Thread-safe. Throws base::Error if the rules refuse the layers.
  LayoutEstimate estimate(const Layout& layout);

 private:
  struct Run;
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, config::Recompute>;
  const MicrobatchCosts& costs(const Layout& layout);
  // Cost of one byte in a group of `count` ranks, `stride` apart.
  price::CollectiveCost byte_cost(const std::string& operation, int64_t count, int64_t stride);
  Run describe(const Layout& layout);
  double pipeline_s(const Run& run) const;
  price::CollectiveCost traffic(const Run& run, const char* operation, double bytes_each);
  double exposed_traffic_s(const Run& run);
  double update_s(const Run& run) const;
  double bytes(const Run& run);

  const PlanRequest& request_;
  LayerForms forms_;
  std::mutex mutex_;
  std::map<Key, std::variant<MicrobatchCosts, base::Error>> known_;  // or why the rules refuse the layers
  std::map<std::tuple<std::string, int64_t, int64_t>, price::CollectiveCost> byte_costs_;
};

}  // namespace metroplex::forecast

// Texts of a search.
#include "forecast/search.h"

#include <cstdio>

#include <nlohmann/json.hpp>

#include "base/bytes_text.h"
#include "base/error.h"
#include "config/load.h"

namespace metroplex::forecast {
namespace {

std::string row(const PlanRequest& request, const SearchResult& result) {
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, "%9.4g s %6.1f %% %9s  ", result.plan.step_s, 100 * result.plan.mfu,
                base::bytes_text(static_cast<double>(result.plan.fit.need)).c_str());
  return numbers + result.layout.to_string(request.run.world_size) +
         (result.loses_by.empty() ? "" : "  (" + result.loses_by + ")") + "\n";
}

}  // namespace

std::string to_text(const PlanRequest& request, const LayoutSearch& search) {
  char head[160];
  std::snprintf(head, sizeof head, "%lld layouts in %.1f s: %lld refused, %lld too large, %lld simulated\n",
                static_cast<long long>(search.candidates), search.seconds, static_cast<long long>(search.refused),
                static_cast<long long>(search.too_large), static_cast<long long>(search.simulated));
  std::string out = head;
  out += "       step     MFU    memory  layout (longest part against the first)\n";
  for (const SearchResult& result : search.results) out += row(request, result);
  out += "not beaten in both memory and time, of the simulated ones\n";
  for (const SearchResult& result : search.pareto) out += row(request, result);
  return out;
}

std::string to_json(const LayoutSearch& search) {
  nlohmann::ordered_json out{{"candidates", search.candidates}, {"refused", search.refused},
                             {"too_large", search.too_large},   {"simulated", search.simulated},
                             {"seconds", search.seconds},       {"results", nlohmann::ordered_json::array()}};
  for (const SearchResult& result : search.results) {
    const Layout& layout = result.layout;
    out["results"].push_back({{"tp", layout.tp},
                              {"cp", layout.cp},
                              {"pp", layout.pp},
                              {"vpp", layout.vpp},
                              {"ep", layout.ep},
                              {"etp", layout.etp},
                              {"micro_batch_size", layout.micro_batch},
                              {"recompute", config::text_of(layout.recompute)},
                              {"sharding", config::text_of(layout.sharding)},
                              {"schedule", config::text_of(layout.schedule)},
                              {"step_s", result.plan.step_s},
                              {"estimate_s", result.estimate_s},
                              {"mfu", result.plan.mfu},
                              {"bytes", result.plan.fit.need},
                              {"offloads_activations", layout.offloads_activations},
                              {"offloads_optimizer", layout.offloads_optimizer},
                              {"settings", layout.settings},
                              {"loses_by", result.loses_by}});
  }
  return out.dump(2) + "\n";
}

std::string best_yaml(const PlanRequest& request, const LayoutSearch& search) {
  return config::dump(search.results.at(0).layout.apply(request.run.config));
}

}  // namespace metroplex::forecast

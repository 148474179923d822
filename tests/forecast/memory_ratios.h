// The memory that the search estimates, relative to the exact memory of a layout.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "config/validate.h"
#include "forecast/layout_estimate.h"
#include "forecast/search.h"
#include "forecast/stage_traces.h"

namespace metroplex::test {

// Ratios of every `step`-th valid layout on 8 ranks. Expects none above the margin of the search, which would drop a
// layout that fits.
inline std::vector<double> memory_ratios(const forecast::PlanRequest& request, size_t step) {
  forecast::LayoutEstimator estimator(request);
  const std::vector<forecast::Layout> layouts = forecast::list_layouts(request);
  std::vector<double> ratios;
  for (size_t i = 0; i < layouts.size(); i += step) {
    forecast::FitRequest run = request.run;
    run.config = layouts[i].apply(request.run.config);
    if (!config::violations(run.config, 8).empty()) continue;
    run.config = config::resolved(run.config, 8);
    const auto need = static_cast<double>(forecast::fit(run, forecast::make_stage_predictor()).need);
    ratios.push_back(estimator.estimate(layouts[i]).bytes / need);
    EXPECT_LE(ratios.back(), forecast::SearchLimits().memory_margin) << layouts[i].to_string(8);
  }
  return ratios;
}

}  // namespace metroplex::test

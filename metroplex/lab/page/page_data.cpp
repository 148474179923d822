#include "page/page_data.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "page/config_rows.h"
#include "page/curve.h"
#include "page/page_sections.h"

namespace metroplex::page {
namespace {

bool is_finite(double value) { return std::isfinite(value); }

constexpr size_t kMostMetrics = 60;  // a model has about ten
constexpr size_t kMostMarks = 500;   // restarts and skipped steps

Json to_json(const Series& series) {
  Json values = Json::array();
  for (const double value : series.values) values.push_back(rounded(value));
  return {{"x", series.iterations}, {"y", values}};
}

Json curve_json(const Series& series, size_t points, bool smoothed) {
  Json curve = to_json(shorten(series, points));
  curve["of"] = series.values.size();
  if (const int64_t steps = smoothing_steps(series.values.size()); smoothed && steps > 1) {
    curve["smooth"] = to_json(shorten(smooth(series, steps), points / 2));
    curve["window"] = steps;
  }
  return curve;
}

// Curves by metric, each with one entry per run; null if the run lacks the metric.
Json metrics_json(const std::vector<const RunData*>& runs) {
  std::vector<std::string> names;
  for (const RunData* run : runs) {
    for (const auto& [name, series] : run->metrics) {
      const bool is_known = std::find(names.begin(), names.end(), name) != names.end();
      if (!series.empty() && !is_known && names.size() < kMostMetrics) names.push_back(name);
    }
  }
  Json out = Json::object();
  for (const std::string& name : names) {
    // These are set by the configuration or are exact.
    const bool smoothed = name != "learning-rate" && name != "loss-scale" && name != "batch-size" &&
                          name != "consumed_samples" && !name.ends_with("n loss") && !name.ends_with("t loss");
    for (const RunData* run : runs) {
      const Series* series = run->find(name);
      out[name].push_back(series == nullptr || series->empty()
                              ? Json(nullptr)
                              : curve_json(*series, points_of_curve(runs.size()), smoothed));
    }
  }
  return out;
}

// Returns at most kMostMarks iterations, evenly chosen.
Json marks_json(const std::vector<int64_t>& iterations) {
  Json marks = Json::array();
  const size_t step = iterations.size() / kMostMarks + 1;
  for (size_t i = 0; i < iterations.size(); i += step) marks.push_back(iterations[i]);
  return marks;
}

double last_finite(const RunData& run, const char* metric) {
  const Series* series = run.find(metric);
  if (series == nullptr) return std::nan("");
  const auto last = std::find_if(series->values.rbegin(), series->values.rend(), is_finite);
  return last == series->values.rend() ? std::nan("") : *last;
}

// The median of the last tenth. The first steps allocate memory, and single steps save or evaluate.
double recent_median(const RunData& run, const char* metric) {
  const Series* series = run.find(metric);
  if (series == nullptr) return std::nan("");
  std::vector<double> values;
  const size_t begin = series->values.size() - (series->values.size() + 9) / 10;
  std::copy_if(series->values.begin() + static_cast<std::ptrdiff_t>(begin), series->values.end(),
               std::back_inserter(values), is_finite);
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Json run_json(const RunData& run) {
  const Series* loss = run.find("lm loss");
  Json out{{"name", run.name}, {"path", run.path}};
  out["steps"] = loss == nullptr ? 0 : loss->values.size();
  out["iteration"] = loss == nullptr || loss->empty() ? Json(nullptr) : Json(loss->iterations.back());
  out["loss"] = rounded(loss == nullptr ? std::nan("") : last_finite(run, "lm loss"));
  out["validation"] = rounded(last_finite(run, "validation loss"));
  out["samples"] = rounded(last_finite(run, "consumed_samples"));
  out["tokens_per_second"] = rounded(recent_median(run, "tokens-per-second"));
  out["tflops"] = rounded(recent_median(run, "throughput"));
  out["not_finite"] =
      loss == nullptr ? 0 : std::count_if(loss->values.begin(), loss->values.end(), std::not_fn(is_finite));
  out["skipped"] = {{"count", run.skipped.size()}, {"x", marks_json(run.skipped)}};
  out["restarts"] = marks_json(run.restarts);
  out["unreadable"] = run.unreadable_lines;
  for (const char* key : {"started", "world_size", "launch", "device"}) {
    if (run.start.is_object() && run.start.contains(key)) out["start"][key] = run.start[key];
  }
  return out;
}

}  // namespace

size_t points_of_curve(size_t runs) { return std::max<size_t>(200, 4000 / std::max<size_t>(1, runs)); }

Json page_data(const std::vector<const RunData*>& runs) {
  Json out{{"points", points_of_curve(runs.size())}, {"runs", Json::array()}, {"metrics", metrics_json(runs)}};
  for (const char* key : {"memory", "time", "slowest", "experts", "rounding"}) out[key] = Json::array();
  for (const RunData* run : runs) {
    out["runs"].push_back(run_json(*run));
    out["memory"].push_back(memory_json(*run));
    out["time"].push_back(time_json(*run));
    out["slowest"].push_back(slowest_json(*run));
    out["experts"].push_back(experts_json(*run));
    out["rounding"].push_back(rounding_json(*run));
  }
  Json& rows = out["config"] = Json::array();
  for (const ConfigRow& row : config_rows(runs))
    rows.push_back({{"key", row.key}, {"values", row.values}, {"differs", row.differs}});
  return out;
}

}  // namespace metroplex::page

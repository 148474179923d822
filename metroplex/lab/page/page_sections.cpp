#include "page/page_sections.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace metroplex::page {
namespace {

constexpr size_t kMostIntervals = 500;  // of the strip of slowest ranks
constexpr size_t kMostRows = 100;       // of their table
constexpr size_t kMostColumns = 160;    // of the heat strip
constexpr size_t kMostLayers = 256;
constexpr size_t kMostOperands = 200;  // of the table of rounding errors

Json bars_json(const Amounts& predicted, const Amounts& measured) {
  Json bars = Json::array();
  const auto find = [](const Amounts& amounts, const std::string& name) -> Json {
    for (const auto& [other, value] : amounts) {
      if (other == name) return rounded(value);
    }
    return nullptr;
  };
  for (const auto& [name, value] : predicted)
    bars.push_back({{"name", name}, {"predicted", rounded(value)}, {"measured", find(measured, name)}});
  for (const auto& [name, value] : measured) {
    if (find(predicted, name).is_null())
      bars.push_back({{"name", name}, {"predicted", nullptr}, {"measured", rounded(value)}});
  }
  return bars;
}

double amount(const Amounts& amounts, std::string_view name) {
  for (const auto& [other, value] : amounts) {
    if (other == name) return value;
  }
  return 0;
}

Amounts start_amounts(const RunData& run, const char* part, const char* list) {
  Amounts amounts;
  if (!run.start.is_object() || !run.start.contains(part) || !run.start[part].is_object()) return amounts;
  const Json& object = run.start[part];
  if (!object.contains(list) || !object[list].is_object()) return amounts;
  for (const auto& [name, value] : object[list].items()) {
    if (value.is_number()) amounts.emplace_back(name, value.get<double>());
  }
  if (object.contains("peak") && object["peak"].is_number())
    amounts.emplace_back("peak", object["peak"].get<double>());
  return amounts;
}

Json interval_json(const Slowest& slowest) {
  return {{"from", slowest.from}, {"to", slowest.to},
          {"rank", slowest.rank}, {"seconds", rounded(slowest.seconds)},
          {"why", slowest.why},   {"text", slowest.text}};
}

// Returns a number of an operand; infinity for null, which a value that is not finite becomes.
double figure(const Json& operand, const char* name) {
  const auto found = operand.find(name);
  return found != operand.end() && found->is_number() ? found->get<double>() : HUGE_VAL;
}

}  // namespace

Json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  const double number = std::strtod(text, nullptr);
  if (number == std::floor(number) && std::abs(number) < 1e15) return static_cast<int64_t>(number);
  return number;
}

Json memory_json(const RunData& run) {
  if (run.memory.empty()) {
    const Amounts predicted = start_amounts(run, "memory", "bytes");
    return predicted.empty() ? Json(nullptr) : Json{{"bars", bars_json(predicted, {})}};
  }
  const auto largest = std::max_element(run.memory.begin(), run.memory.end(), [](const auto& one, const auto& other) {
    return amount(one.second.measured, "peak") < amount(other.second.measured, "peak");
  });
  const Prediction& worst = largest->second;
  return {{"rank", largest->first},
          {"ranks", run.memory.size()},
          {"iteration", worst.iteration},
          {"bars", bars_json(worst.predicted, worst.measured)}};
}

Json time_json(const RunData& run) {
  const Amounts predicted = start_amounts(run, "time", "seconds");
  if (!run.time) return predicted.empty() ? Json(nullptr) : Json{{"bars", bars_json(predicted, {})}};
  const Amounts& own = run.time->predicted;
  return {{"iteration", run.time->iteration}, {"bars", bars_json(own.empty() ? predicted : own, run.time->measured)}};
}

Json slowest_json(const RunData& run) {
  const std::vector<Slowest>& all = run.slowest;
  if (all.empty()) return nullptr;
  Json strip = Json::array(), rows = Json::array();
  const size_t bucket = (all.size() + kMostIntervals - 1) / kMostIntervals;
  for (size_t begin = 0; begin < all.size(); begin += bucket) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(begin + bucket, all.size()));
    Slowest worst = *std::max_element(first, end, [](auto& one, auto& other) { return one.seconds < other.seconds; });
    worst.text.clear();
    worst.from = first->from;
    worst.to = std::prev(end)->to;
    strip.push_back(interval_json(worst));
  }
  for (size_t i = all.size(); i > 0 && rows.size() < kMostRows; --i) rows.push_back(interval_json(all[i - 1]));
  return {{"count", all.size()}, {"strip", strip}, {"rows", rows}};
}

Json experts_json(const RunData& run) {
  if (run.expert_imbalance.empty()) return nullptr;
  const std::vector<int64_t>& steps =
      std::max_element(run.expert_imbalance.begin(), run.expert_imbalance.end(), [](auto& one, auto& other) {
        return one.second.values.size() < other.second.values.size();
      })->second.iterations;
  const size_t columns = std::min(kMostColumns, steps.size());
  Json starts = Json::array(), layers = Json::array(), rows = Json::array();
  for (size_t column = 0; column < columns; ++column) starts.push_back(steps[column * steps.size() / columns]);
  for (const auto& [layer, series] : run.expert_imbalance) {
    if (layers.size() == kMostLayers) break;
    std::vector<double> largest(columns, std::nan(""));
    for (size_t i = 0; i < series.values.size(); ++i) {
      const auto after = std::upper_bound(starts.begin(), starts.end(), Json(series.iterations[i]));
      if (after == starts.begin()) continue;
      double& value = largest[static_cast<size_t>(after - starts.begin()) - 1];
      value = std::fmax(value, series.values[i]);
    }
    Json row = Json::array();
    for (const double value : largest) row.push_back(rounded(value));
    layers.push_back(layer);
    rows.push_back(row);
  }
  if (columns == 0) return nullptr;
  return {{"layers", layers},
          {"from", starts},
          {"last", steps.back()},
          {"rows", rows},
          {"all_layers", run.expert_imbalance.size()}};
}

Json rounding_json(const RunData& run) {
  struct Row {
    std::string layer, operand;
    const Json* figures;
    double error;
  };
  std::vector<Row> rows;
  for (const auto& [layer, operands] : run.rounding.layers.items()) {
    if (!operands.is_object()) continue;
    for (const auto& [operand, figures] : operands.items())
      if (figures.is_object()) rows.push_back({layer, operand, &figures, figure(figures, "error")});
  }
  if (rows.empty()) return nullptr;
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& one, const Row& other) { return one.error > other.error; });
  Json shown = Json::array();
  for (size_t i = 0; i < std::min(rows.size(), kMostOperands); ++i) {
    Json& row = shown.emplace_back(Json{{"layer", rows[i].layer}, {"operand", rows[i].operand}});
    for (const char* name : {"error", "saturated", "flushed", "nonfinite", "amax", "scale"})
      row[name] = rounded(figure(*rows[i].figures, name));
  }
  return {{"iteration", run.rounding.iteration}, {"count", rows.size()}, {"rows", shown}};
}

}  // namespace metroplex::page

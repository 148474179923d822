#include "draw/experts.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "draw/text.h"

namespace metroplex::draw {
namespace {

using base::concat;
using Steps = std::vector<const files::ExpertTraceStep*>;

constexpr size_t kMaxRows = 32;   // iterations of one layer
constexpr size_t kMaxTimes = 64;  // cells of iterations

std::vector<double> divide_by_mean(const std::vector<int64_t>& counts) {
  const auto sum = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  std::vector<double> out;
  for (const int64_t count : counts)
    out.push_back(sum > 0 ? static_cast<double>(count) * static_cast<double>(counts.size()) / sum : 0);
  return out;
}

// Divides `steps` into at most `most` consecutive groups of nearly equal length.
std::vector<Steps> split_steps(const Steps& steps, size_t most) {
  const size_t count = std::min(most, steps.size());
  std::vector<Steps> out;
  for (size_t i = 0; i < count; ++i) {
    const auto begin = steps.begin() + static_cast<int64_t>(i * steps.size() / count),
               end = steps.begin() + static_cast<int64_t>((i + 1) * steps.size() / count);
    out.emplace_back(begin, end);
  }
  return out;
}

std::string format_range(const Steps& steps) {
  const int64_t first = steps.front()->iteration, last = steps.back()->iteration;
  return first == last ? std::to_string(first) : concat(first, "-", last);
}

std::string format_imbalance(const files::Imbalance& of) {
  return format("%7.3f", of.together) + format(" %7.3f", of.mean) + format(" %7.3f", of.worst);
}

constexpr const char* kRemarks = "experts    step   worst    ranks    step   worst  dropped";

Heat::Row expert_row(const files::ExpertTrace& trace, const Steps& steps, size_t layer, const std::string& label) {
  const std::vector<int64_t> tokens = tokens_of_layer(trace, steps, layer);
  const int64_t dropped = dropped_of_layer(steps, layer);
  const auto all = static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}) + dropped);
  const std::string remark = format_imbalance(imbalance_of_layer(trace, steps, layer)) + "  " +
                             format_imbalance(imbalance_of_layer_ranks(trace, steps, layer)) +
                             format("  %6.2f%%", all > 0 ? 100 * static_cast<double>(dropped) / all : 0);
  return {label, remark, divide_by_mean(tokens)};
}

size_t find_layer(const files::ExpertTrace& trace, int64_t layer) {
  const auto found = std::find(trace.head.layers.begin(), trace.head.layers.end(), layer);
  std::string all;
  for (const int64_t has : trace.head.layers) all += (all.empty() ? "" : ", ") + std::to_string(has);
  MPX_CHECK(found != trace.head.layers.end(), "config", "--layer ", layer, ": the trace has experts in the layers ",
            all, "; choose one of them");
  return static_cast<size_t>(found - trace.head.layers.begin());
}

std::vector<size_t> select_layers(const files::ExpertTrace& trace, const ExpertPictureOptions& options) {
  if (options.layer) return {find_layer(trace, *options.layer)};
  std::vector<size_t> all(trace.head.layers.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

std::string layer_name(const files::ExpertTrace& trace, size_t layer) {
  return "layer " + std::to_string(trace.head.layers[layer]);
}

// Imbalance by iteration: over ranks if experts are on several ranks, else over experts.
Heat times_heat(const files::ExpertTrace& trace, const Steps& steps, const std::vector<size_t>& layers) {
  const bool ranks = trace.head.ep > 1;
  Heat heat{concat("largest over mean of the ", ranks ? "ranks" : "experts", ", iterations ", format_range(steps)),
            "",
            "iteration",
            {}};
  for (const size_t layer : layers) {
    Heat::Row row{layer_name(trace, layer), "", {}};
    for (const Steps& group : split_steps(steps, kMaxTimes))
      row.cells.push_back(
          (ranks ? imbalance_of_layer_ranks(trace, group, layer) : imbalance_of_layer(trace, group, layer)).mean);
    heat.rows.push_back(row);
  }
  return heat;
}

Heat ranks_heat(const files::ExpertTrace& trace, const Steps& steps, const std::vector<size_t>& layers) {
  Heat heat{concat("load of the ", trace.head.ep, " ranks that experts are dealt to (ep), over their mean"),
            "",
            "rank",
            {}};
  for (const size_t layer : layers) {
    heat.rows.push_back(
        {layer_name(trace, layer), format_imbalance(imbalance_of_layer_ranks(trace, steps, layer)),
         divide_by_mean(files::tokens_of_ranks(tokens_of_layer(trace, steps, layer), trace.head.ep))});
  }
  heat.remarks = "largest    step   worst";
  return heat;
}

}  // namespace

std::vector<const files::ExpertTraceStep*> select_steps(const files::ExpertTrace& trace,
                                                        const ExpertPictureOptions& options) {
  Steps steps;
  for (const files::ExpertTraceStep& step : trace.steps) {
    if (!options.iteration || *options.iteration == step.iteration) steps.push_back(&step);
  }
  MPX_CHECK(!trace.steps.empty(), "files", "the expert trace has no iterations yet; train on");
  MPX_CHECK(!steps.empty(), "config", "--iteration ", *options.iteration, ": the trace has ", trace.steps.size(),
            " iterations from ", trace.steps.front().iteration, " to ", trace.steps.back().iteration,
            "; choose one of them");
  return steps;
}

std::vector<int64_t> tokens_of_layer(const files::ExpertTrace& trace, const Steps& steps, size_t layer) {
  std::vector<int64_t> tokens(static_cast<size_t>(trace.head.num_experts));
  for (const files::ExpertTraceStep* step : steps) {
    for (int64_t e = 0; e < trace.head.num_experts; ++e)
      tokens[static_cast<size_t>(e)] += trace.tokens(*step, layer, e);
  }
  return tokens;
}

files::Imbalance imbalance_of_layer(const files::ExpertTrace& trace, const Steps& steps, size_t layer) {
  std::vector<std::vector<int64_t>> each;
  for (const files::ExpertTraceStep* step : steps) each.push_back(tokens_of_layer(trace, {step}, layer));
  return files::imbalance_of_steps(each);
}

files::Imbalance imbalance_of_layer_ranks(const files::ExpertTrace& trace, const Steps& steps, size_t layer) {
  std::vector<std::vector<int64_t>> each;
  for (const files::ExpertTraceStep* step : steps)
    each.push_back(files::tokens_of_ranks(tokens_of_layer(trace, {step}, layer), trace.head.ep));
  return files::imbalance_of_steps(each);
}

int64_t dropped_of_layer(const Steps& steps, size_t layer) {
  int64_t sum = 0;
  for (const files::ExpertTraceStep* step : steps) sum += step->dropped[layer];
  return sum;
}

std::vector<Heat> expert_heats(const files::ExpertTrace& trace, const ExpertPictureOptions& options) {
  const Steps steps = select_steps(trace, options);
  const std::vector<size_t> layers = select_layers(trace, options);
  Heat experts{
      concat("tokens of the ", trace.head.num_experts, " experts, ",
             options.layer ? layer_name(trace, layers[0]) + ", " : std::string(), "iterations ", format_range(steps)),
      kRemarks,
      "expert",
      {}};
  if (options.layer) {
    for (const Steps& group : split_steps(steps, kMaxRows))
      experts.rows.push_back(expert_row(trace, group, layers[0], format_range(group)));
  } else {
    for (const size_t layer : layers)
      experts.rows.push_back(expert_row(trace, steps, layer, layer_name(trace, layer)));
  }
  std::vector<Heat> heats{experts};
  if (steps.size() > 1) heats.push_back(times_heat(trace, steps, layers));
  if (trace.head.ep > 1) heats.push_back(ranks_heat(trace, steps, layers));
  return heats;
}

}  // namespace metroplex::draw

#include "draw/schedule.h"

#include <algorithm>
#include <cmath>

#include "draw/text.h"

namespace metroplex::draw {
namespace {

std::string box_label(const plan::PipelineTable& table, const plan::Action& action) {
  std::string label = std::to_string(action.microbatch);
  if (table.num_chunks > 1) label += static_cast<char>('a' + action.chunk % 26);
  return label;
}

// Returns the duration of the shortest compute action above 0.
double shortest_action(const replay::Timeline& timeline) {
  double result = timeline.length;
  for (const auto& actions : timeline.ranks) {
    for (const replay::TimedAction& timed : actions) {
      const double time = timed.end - timed.start;
      if (is_compute(timed.action.kind) && time > 0) result = std::min(result, time);
    }
  }
  return result;
}

double columns_per_time(const replay::Timeline& timeline, size_t label, int max_columns) {
  if (timeline.length <= 0) return 0;
  // Rounds the width of the shortest box down to whole columns, so that equal durations look equal. Uses a fraction
  // only if that box is narrower than one column.
  const double least = shortest_action(timeline), available = max_columns * least / timeline.length;
  const double columns = std::min(static_cast<double>(label + 1), available);
  return (columns >= 1 ? std::floor(columns) : columns) / least;
}

int ansi_color(const plan::PipelineTable& table, const plan::Action& action) {
  constexpr int kForward[] = {75, 69, 63, 111}, kBackward[] = {114, 108, 71, 150};
  const int shade = action.chunk * 4 / std::max(table.num_chunks, 4) % 4;
  const int index = table.num_chunks <= 4 ? action.chunk : shade;
  if (action.kind == plan::ActionKind::forward) return kForward[index];
  return action.kind == plan::ActionKind::backward ? kBackward[index] : 180;
}

std::string text_box(const plan::PipelineTable& table, const plan::Action& action, std::string label, size_t width,
                     const ScheduleOptions& options) {
  if (width == 0) return "";
  if (label.size() > width) label.clear();
  const char fill = options.color                               ? ' '
                    : action.kind == plan::ActionKind::forward  ? '.'
                    : action.kind == plan::ActionKind::backward ? '='
                                                                : '~';
  std::string box = label + std::string(width - label.size(), fill);
  if (!options.color) return box;
  return "\033[30;48;5;" + std::to_string(ansi_color(table, action)) + "m" + box + "\033[0m";
}

std::string text_row(const plan::PipelineTable& table, const replay::Timeline& timeline, size_t rank, double scale,
                     const ScheduleOptions& options, const DrawLabels& labels) {
  std::string row;
  long column = 0;
  for (const replay::TimedAction& timed : timeline.ranks[rank]) {
    if (!is_compute(timed.action.kind)) continue;
    const long begin = std::lround(timed.start * scale), end = std::lround(timed.end * scale);
    if (begin > column) row += std::string(static_cast<size_t>(begin - column), ' ');
    column = std::max(column, begin);
    if (end > column)
      row +=
          text_box(table, timed.action, labels.box(rank, timed.action), static_cast<size_t>(end - column), options);
    column = std::max(column, end);
  }
  return row;
}

size_t row_width(const std::vector<replay::TimedAction>& actions, double scale) {
  double end = 0;
  for (const replay::TimedAction& timed : actions) {
    if (is_compute(timed.action.kind)) end = std::max(end, timed.end);
  }
  return static_cast<size_t>(std::lround(end * scale));
}

const char* svg_color(const plan::Action& action, int num_chunks) {
  constexpr const char* kForward[] = {"#7db4e8", "#4d8fd1", "#2f6db0", "#a9cff2"};
  constexpr const char* kBackward[] = {"#8fd19e", "#5cb176", "#3c8f58", "#b9e5c4"};
  const int index = num_chunks <= 4 ? action.chunk : action.chunk * 4 / num_chunks;
  if (action.kind == plan::ActionKind::forward) return kForward[index];
  return action.kind == plan::ActionKind::backward ? kBackward[index] : "#e3c27a";
}

constexpr double kScheduleWidth = 880, kScheduleRow = 26, kScheduleLeft = 64, kScheduleTop = 34;

std::string svg_row(const plan::PipelineTable& table, const replay::Timeline& timeline, size_t rank) {
  const double y = kScheduleTop + kScheduleRow * static_cast<double>(rank);
  const double scale = timeline.length > 0 ? kScheduleWidth / timeline.length : 0;
  std::string row = svg_text(kScheduleLeft - 8, y + 16, " text-anchor=\"end\"", "rank " + std::to_string(rank));
  for (const replay::TimedAction& timed : timeline.ranks[rank]) {
    if (!is_compute(timed.action.kind)) continue;
    const double x = kScheduleLeft + timed.start * scale, width = (timed.end - timed.start) * scale;
    row += "<rect x=\"" + format("%.5g", x) + "\" y=\"" + format("%.5g", y) + "\" width=\"" + format("%.4g", width) +
           "\" height=\"22\" fill=\"" + svg_color(timed.action, table.num_chunks) + "\"/>\n";
    const std::string label = box_label(table, timed.action);
    if (width >= 7.0 * static_cast<double>(label.size())) {
      row += svg_text(x + width / 2, y + 15, " text-anchor=\"middle\"", label);
    }
  }
  const std::string right = format("%.1f %%", 100 * timeline.bubble_share[rank]) +
                            (table.forward_only ? "" : ", " + std::to_string(timeline.peak_live_activations[rank]));
  return row + svg_text(kScheduleLeft + kScheduleWidth + 8, y + 16, "", right);
}

std::string title(const plan::PipelineTable& table) {
  std::string text = table.name + ": " + std::to_string(table.num_stages) + " stages";
  if (table.num_chunks > 1) text += " x " + std::to_string(table.num_chunks) + " chunks";
  text += ", " + std::to_string(table.num_microbatches) + " microbatches";
  return table.forward_only ? text + ", forward only" : text;
}

}  // namespace

std::string draw_text(const plan::PipelineTable& table, const replay::Timeline& timeline,
                      const ScheduleOptions& options, const DrawLabels& labels) {
  const size_t digits = std::to_string(table.num_stages - 1).size();
  std::vector<std::string> before, after;
  size_t margin = 0;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    before.push_back("rank " + pad_left(std::to_string(rank), digits) + " |");
    after.push_back("| " + labels.row_end(rank));
    margin = std::max(margin, before.back().size() + after.back().size());
  }
  int columns = options.max_columns;
  if (options.line_columns > 0)
    columns = std::min(columns, std::max(10, options.line_columns - static_cast<int>(margin)));
  const double scale = columns_per_time(timeline, labels.widest, columns);
  size_t width = 0;
  for (const auto& actions : timeline.ranks) width = std::max(width, row_width(actions, scale));
  std::string text;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    text += before[rank] + text_row(table, timeline, rank, scale, options, labels) +
            std::string(width - row_width(timeline.ranks[rank], scale), ' ') + after[rank] + "\n";
  }
  text += labels.legend;
  text += options.color ? "; blue forward, green backward" : "; '.' forward, '=' backward";
  if (table.splits_backward()) text += options.color ? ", yellow weight gradients" : ", '~' weight gradients";
  return text + "\n";
}

std::string draw_text(const plan::PipelineTable& table, const replay::Timeline& timeline,
                      const ScheduleOptions& options) {
  DrawLabels labels;
  labels.box = [&](size_t, const plan::Action& action) { return box_label(table, action); };
  labels.row_end = [&](size_t rank) {
    const std::string bubble = "bubble " + pad_left(format("%.1f", 100 * timeline.bubble_share[rank]), 4) + " %";
    return table.forward_only ? bubble : bubble + ", live " + std::to_string(timeline.peak_live_activations[rank]);
  };
  labels.widest = std::to_string(table.num_microbatches - 1).size() + (table.num_chunks > 1 ? 1 : 0);
  labels.legend = table.num_chunks > 1 ? "a box: microbatch and chunk (a, b, ...)" : "a box: microbatch";
  return title(table) + "\n" + draw_text(table, timeline, options, labels);
}

std::string draw_svg(const plan::PipelineTable& table, const replay::Timeline& timeline) {
  const double height = kScheduleTop + kScheduleRow * static_cast<double>(timeline.ranks.size()) + 26;
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1040 " + format("%.5g", height) +
                    "\" font-family=\"sans-serif\" font-size=\"11\">\n";
  svg += "<rect width=\"1040\" height=\"" + format("%.5g", height) + "\" fill=\"white\"/>\n";
  svg += svg_text(kScheduleLeft, 18, " font-size=\"13\" font-weight=\"bold\"", title(table));
  svg += svg_text(kScheduleLeft + kScheduleWidth + 8, 18, "", table.forward_only ? "bubble" : "bubble, live");
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) svg += svg_row(table, timeline, rank);
  const std::string legend =
      "blue: forward, green: backward" + std::string(table.splits_backward() ? ", yellow: weight gradients" : "") +
      "; a number is a microbatch" + std::string(table.num_chunks > 1 ? ", a letter a chunk" : "") +
      "; bubble of all ranks " + format("%.1f %%", 100 * timeline.total_bubble_share);
  return svg + svg_text(kScheduleLeft, height - 8, " fill=\"#555\"", legend) + "</svg>\n";
}

}  // namespace metroplex::draw

#include "page/text_curve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/utf8.h"
#include "draw/text.h"
#include "page/curve.h"

namespace metroplex::page {
namespace {

constexpr std::array<int, 6> kColours{33,  208, 36,
                                      170, 178, 117};  // of the 256-color palette; distinct if color-blind
constexpr std::string_view kMarks = "*o+x#@";

struct Limits {
  int64_t first = 0, last = 0;  // iterations
  double low = 0, high = 0;
};

Limits find_limits(const std::vector<TextCurve>& curves) {
  constexpr double kLargest = 1e300;  // keeps the difference finite
  Limits limits{std::numeric_limits<int64_t>::max(), 0, kLargest, -kLargest};
  for (const TextCurve& curve : curves) {
    if (curve.series->empty()) continue;
    limits.first = std::min(limits.first, curve.series->iterations.front());
    limits.last = std::max(limits.last, curve.series->iterations.back());
    for (const double value : curve.series->values) {
      if (!std::isfinite(value)) continue;
      limits.low = std::min(limits.low, std::max(value, -kLargest));
      limits.high = std::max(limits.high, std::min(value, kLargest));
    }
  }
  if (limits.low > limits.high) limits.low = limits.high = 0;
  if (limits.low == limits.high) {
    const double margin = limits.low == 0 ? 1 : std::abs(limits.low) * 0.1;
    limits.low -= margin;
    limits.high += margin;
  }
  return limits;
}

// Cells of the picture. A cell has 2 x 4 braille dots or one mark; the last curve in a cell sets its color.
class Canvas {
 public:
  Canvas(int columns, int rows, bool marks)
      : columns_(columns),
        rows_(rows),
        across_(marks ? 1 : 2),
        down_(marks ? 1 : 4),
        cells_(static_cast<size_t>(columns) * static_cast<size_t>(rows)) {}

  int width() const { return columns_ * across_; }
  int height() const { return rows_ * down_; }

  void set(int x, int y, size_t curve) {
    static constexpr std::array<std::array<int, 2>, 4> kDots{
        {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
    Cell& cell = cells_[static_cast<size_t>(y / down_ * columns_ + x / across_)];
    cell.dots |= kDots[static_cast<size_t>(y % down_)][static_cast<size_t>(x % across_)];
    cell.curve = curve;
  }

  std::string row(int y, bool colour) const {
    std::string text;
    for (int x = 0; x < columns_; ++x) {
      const Cell& cell = cells_[static_cast<size_t>(y * columns_ + x)];
      std::string glyph = " ";
      if (cell.dots != 0 && down_ == 1) glyph = kMarks[cell.curve % kMarks.size()];
      if (cell.dots != 0 && down_ == 4)  // U+2800 + dots in UTF-8
        glyph = {'\xE2', static_cast<char>(0xA0 | cell.dots >> 6), static_cast<char>(0x80 | (cell.dots & 0x3F))};
      text += cell.dots != 0 && colour ? coloured(glyph, cell.curve) : glyph;
    }
    return text.substr(0, text.find_last_not_of(' ') + 1);
  }

  static std::string coloured(const std::string& text, size_t curve) {
    return "\033[38;5;" + std::to_string(kColours[curve % kColours.size()]) + "m" + text + "\033[0m";
  }

 private:
  struct Cell {
    int dots = 0;
    size_t curve = 0;
  };
  int columns_, rows_, across_, down_;
  std::vector<Cell> cells_;
};

void draw_curve(Canvas& canvas, const Limits& limits, const TextCurve& drawn, size_t curve) {
  const Series& series = *drawn.series;
  const double x_scale = (canvas.width() - 1) / static_cast<double>(std::max<int64_t>(1, limits.last - limits.first)),
               y_scale = (canvas.height() - 1) / (limits.high - limits.low);
  const Series points = drawn.connected ? shorten(series, static_cast<size_t>(canvas.width()) * 6) : series;
  bool connected = false;
  int last_x = 0, last_y = 0;
  for (size_t i = 0; i < points.values.size(); ++i) {
    if (!std::isfinite(points.values[i])) {
      connected = false;
      continue;
    }
    const double value = std::clamp(points.values[i], limits.low, limits.high);
    const auto x = static_cast<int>(std::lround(static_cast<double>(points.iterations[i] - limits.first) * x_scale)),
               y = static_cast<int>(std::lround((limits.high - value) * y_scale));
    const int steps = connected ? std::max({1, std::abs(x - last_x), std::abs(y - last_y)}) : 1;
    for (int step = connected ? 0 : 1; step <= steps; ++step) {
      const double share = static_cast<double>(step) / steps;
      const auto between = [&](int from, int to) {
        return connected ? static_cast<int>(std::lround(from + (to - from) * share)) : to;
      };
      canvas.set(between(last_x, x), between(last_y, y), curve);
    }
    last_x = x;
    last_y = y;
    connected = drawn.connected;
  }
}

std::string legend_line(const std::vector<TextCurve>& curves, bool colour, bool marks) {
  std::string text;
  for (size_t i = 0; i < curves.size(); ++i) {
    const Series& series = *curves[i].series;
    const std::string last = series.empty() ? "no values" : draw::format("%.5g", series.values.back());
    std::string mark = marks ? std::string(1, kMarks[i % kMarks.size()]) : "\u2500";
    if (colour) mark = Canvas::coloured(mark, i);
    text += (i > 0 ? "   " : "") + mark + " " + base::escape_controls(curves[i].label) + " " + last;
  }
  return text;
}

}  // namespace

std::string draw_curves(const std::string& title, const std::vector<TextCurve>& curves,
                        const TextChartOptions& options) {
  const bool marks = options.ascii || (curves.size() > 1 && !options.colour);
  const Limits limits = find_limits(curves);
  const int rows = std::max(options.lines, kLeastLines) - 3;  // title, iterations, legend
  const auto value_at = [&](int row) {
    return draw::format("%.4g", limits.high - (limits.high - limits.low) * row / (rows - 1));
  };
  size_t margin = 0;
  for (const int row : {0, rows / 2, rows - 1}) margin = std::max(margin, value_at(row).size());
  const int columns = std::max(options.columns, kLeastColumns) - static_cast<int>(margin) - 2;
  Canvas canvas(columns, rows, marks);
  for (size_t i = 0; i < curves.size(); ++i) draw_curve(canvas, limits, curves[i], i);
  std::string text = base::escape_controls(title) + "\n";
  for (int row = 0; row < rows; ++row) {
    const bool labelled = row == 0 || row == rows / 2 || row == rows - 1;
    text += draw::pad_left(labelled ? value_at(row) : "", margin) + (options.ascii ? " |" : " \u2502") +
            canvas.row(row, options.colour) + "\n";
  }
  const std::string first = std::to_string(std::min(limits.first, limits.last)), last = std::to_string(limits.last);
  text += std::string(margin + 2, ' ') + first +
          draw::pad_left(last, static_cast<size_t>(std::max<int>(0, columns - static_cast<int>(first.size())))) +
          "\n";
  const bool plain = options.ascii && !options.colour;
  return text + std::string(margin + 2, ' ') + legend_line(curves, options.colour, marks || plain) + "\n";
}

}  // namespace metroplex::page

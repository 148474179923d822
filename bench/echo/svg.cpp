#include "svg.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace metroplex::bench {
namespace {

[[gnu::format(printf, 2, 3)]] void add(std::string& out, const char* pattern, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(buffer, sizeof buffer, pattern, arguments);
  va_end(arguments);
  out += buffer;
}

void text(std::string& out, double x, double y, const char* anchor, const std::string& words, int size = 12) {
  add(out, R"(<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d">)", x, y, anchor, size);
  out += words + "</text>\n";
}

std::string open_svg(int width, int height) {
  std::string out;
  add(out, R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif">)", width, height);
  add(out, "\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", width, height);
  return out;
}

std::string colour(double value, double most) {
  const double strength = std::min(1.0, std::abs(value) / most);
  const int faded = 255 - static_cast<int>(200 * strength);
  char buffer[16];
  if (value < 0) std::snprintf(buffer, sizeof buffer, "#ff%02x%02x", faded, faded);
  else std::snprintf(buffer, sizeof buffer, "#%02x%02xff", faded, faded);
  return buffer;
}

constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b"};

}  // namespace

std::string render_svg(const Heat& heat, double most) {
  constexpr int kCell = 34, kLeft = 60, kTop = 56, kGap = 24;
  const int columns = static_cast<int>(heat.columns.size()), rows = static_cast<int>(heat.rows.size());
  const int panel = columns * kCell, panels = static_cast<int>(heat.panels.size());
  const int width = kLeft + panels * (panel + kGap), height = kTop + rows * kCell + 50;
  std::string out = open_svg(width, height);
  text(out, kLeft, 20, "start", heat.title, 14);
  for (int p = 0; p < panels; ++p) {
    const Panel& part = heat.panels[static_cast<size_t>(p)];
    const int left = kLeft + p * (panel + kGap), bottom = kTop + rows * kCell;
    text(out, left, kTop - 10, "start", part.title);
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        const double value = part.values[static_cast<size_t>(row)][static_cast<size_t>(column)];
        const int x = left + column * kCell, y = bottom - (row + 1) * kCell;
        add(out, R"(<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>)", x, y, kCell, kCell,
            colour(value, most).c_str());
        char label[16];
        std::snprintf(label, sizeof label, "%+.0f", 100 * value);
        text(out, x + kCell / 2.0, y + kCell / 2.0 + 4, "middle", label, 10);
      }
    }
    for (int column = 0; column < columns; ++column)
      text(out, left + (column + 0.5) * kCell, bottom + 16, "middle", heat.columns[static_cast<size_t>(column)], 10);
    for (const auto* const line : {&part.line, &part.dashed}) {
      add(out, "<polyline fill=\"none\" stroke=\"black\" stroke-width=\"2.5\"%s points=\"",
          line == &part.dashed ? " stroke-dasharray=\"5 4\"" : "");
      for (const auto& [x, y] : *line) add(out, "%.1f,%.1f ", left + x * kCell, bottom - y * kCell);
      out += "\"/>\n";
    }
  }
  for (int row = 0; row < rows; ++row)
    text(out, kLeft - 6, kTop + (rows - row - 0.5) * kCell + 4, "end", heat.rows[static_cast<size_t>(row)], 10);
  text(out, kLeft, height - 12, "start", heat.x_title + "; rows: " + heat.y_title);
  return out + "</svg>\n";
}

std::string render_svg(const Chart& chart) {
  constexpr int kWidth = 860, kHeight = 480, kLeft = 60, kRight = 600, kTop = 44, kBottom = 420;
  std::string out = open_svg(kWidth, kHeight);
  text(out, kLeft, 22, "start", chart.title, 14);
  const auto x_of = [&](double x) {
    return kLeft + (x - chart.x_from) / (chart.x_to - chart.x_from) * (kRight - kLeft);
  };
  const auto y_of = [&](double y) { return kBottom - y / chart.y_to * (kBottom - kTop); };
  for (int i = 0; i <= 5; ++i) {
    const double x = chart.x_from + i * (chart.x_to - chart.x_from) / 5, y = i * chart.y_to / 5;
    char label[32];
    std::snprintf(label, sizeof label, "%.3g", x);
    text(out, x_of(x), kBottom + 18, "middle", label);
    std::snprintf(label, sizeof label, "%.3g", y);
    text(out, kLeft - 8, y_of(y) + 4, "end", label);
    add(out, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", kLeft, y_of(y), kRight,
        y_of(y));
  }
  text(out, (kLeft + kRight) / 2.0, kBottom + 40, "middle", chart.x_title);
  text(out, kLeft, kTop - 8, "start", chart.y_title);
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    const Line& line = chart.lines[i];
    const char* const ink = kColours[i / 2 % std::size(kColours)];  // pairs of related lines share a color
    if (line.joined) {
      add(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", ink);
      for (const auto& [x, y] : line.points) add(out, "%.1f,%.1f ", x_of(x), y_of(y));
      out += "\"/>\n";
    }
    for (const auto& [x, y] : line.points) {
      if (line.joined) add(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x_of(x), y_of(y), ink);
      else
        add(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"9\" height=\"9\" fill=\"%s\"/>\n", x_of(x) - 4.5, y_of(y) - 4.5,
            ink);
    }
    const double y = kTop + 18.0 * static_cast<double>(i);
    add(out, "<rect x=\"%d\" y=\"%.1f\" width=\"10\" height=\"%d\" fill=\"%s\"/>\n", kRight + 20, y,
        line.joined ? 3 : 10, ink);
    text(out, kRight + 36, y + 8, "start", line.name);
  }
  return out + "</svg>\n";
}

}  // namespace metroplex::bench

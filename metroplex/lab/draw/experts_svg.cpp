#include "draw/experts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "draw/text.h"

namespace metroplex::draw {
namespace {

constexpr int kHeatMargin = 12, kLabel = 90, kRemark = 220, kHeatWidth = 1000, kHeight = 16, kTitle = 44;

// White at the mean, blue below, red from twice the mean.
std::string colour(double heat) {
  const double away = std::clamp(heat - 1, -1.0, 1.0);
  const auto pale = static_cast<int>(std::lround(255 * (1 - std::abs(away))));
  const int strong = 255 - (255 - pale) / 6;
  char buffer[8];
  if (away < 0) std::snprintf(buffer, sizeof buffer, "#%02x%02x%02x", pale, 96 + pale * 159 / 255, strong);
  else std::snprintf(buffer, sizeof buffer, "#%02x%02x%02x", strong, pale, pale);
  return buffer;
}

int write_heat(std::ostream& out, const Heat& heat, int y) {
  write_text(out, kHeatMargin, y + 14, heat.title, "bold");
  const auto cells = static_cast<double>(heat.rows.at(0).cells.size());
  const int available = kHeatWidth - 2 * kHeatMargin - kLabel - kRemark;
  const double width = std::min(24.0, std::floor(available / cells * 100) / 100);
  const double remark = kHeatMargin + kLabel + width * cells + 12;
  write_text(out, remark, y + 34, heat.remarks);
  y += kTitle;
  for (const Heat::Row& row : heat.rows) {
    write_text(out, kHeatMargin, y + 12, row.label);
    write_text(out, remark, y + 12, row.remark);
    for (size_t i = 0; i < row.cells.size(); ++i) {
      char value[32];
      std::snprintf(value, sizeof value, "%.3f", row.cells[i]);
      out << "<rect x=\"" << kHeatMargin + kLabel + width * static_cast<double>(i) << "\" y=\"" << y << "\" width=\""
          << width << "\" height=\"" << kHeight << "\" fill=\"" << colour(row.cells[i]) << "\"><title>" << row.label
          << ", " << heat.cell << " " << i << ": " << value << "</title></rect>\n";
    }
    y += kHeight;
  }
  return y + 20;
}

}  // namespace

std::string draw_svg(const files::ExpertTrace& trace, const ExpertPictureOptions& options) {
  std::ostringstream body;
  int y = kHeatMargin;
  for (const Heat& heat : expert_heats(trace, options)) y = write_heat(body, heat, y);
  write_text(body, kHeatMargin, y + 14,
             "load over the mean of its row: blue below, white at the mean, red at twice the mean and above");
  std::ostringstream out;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << kHeatWidth << "\" height=\"" << y + 20 + kHeatMargin
      << "\" font-family=\"monospace\" font-size=\"12\" xml:space=\"preserve\">\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      << body.str() << "</svg>\n";
  return out.str();
}

}  // namespace metroplex::draw

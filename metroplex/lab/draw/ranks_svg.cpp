#include "draw/ranks.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "draw/text.h"

namespace metroplex::draw {

namespace {

constexpr std::array<const char*, 12> kColours = {"#9ecae9", "#fdc086", "#b2df8a", "#cdb4db", "#ffe08a", "#a8dadc",
                                                  "#f4a6b7", "#d9d3a5", "#8fb3ff", "#e0b48c", "#b5ead7", "#e8c7f0"};
constexpr int kLetter = 8;  // a 12 px monospace letter is 7.2 to 7.3 px wide
constexpr int kMapMargin = 12;
constexpr int kCellHeight = 36;
constexpr int kGapHeight = 22;
constexpr int kGapWidth = 24;

struct Extent {
  int label;
  int cell;
  int width;
  int height;
};

Extent measure_picture(const Picture& picture) {
  Extent extent{};
  extent.label = static_cast<int>(picture.label_width) * kLetter + 6;
  extent.cell = static_cast<int>(picture.cell_width) * kLetter + 14;
  int widest = static_cast<int>(std::max(picture.title.size(), picture.legend.size())) * kLetter;
  extent.height = 2 * kMapMargin + 44;
  for (const PictureRow& row : picture.rows) {
    int width = extent.label;
    for (const PictureCell& cell : row.cells) width += cell.rank < 0 ? kGapWidth : extent.cell + 4;
    widest = std::max(widest, width);
    extent.height += row.cells.empty() ? kGapHeight : kCellHeight + 6;
  }
  extent.width = widest + 2 * kMapMargin;
  return extent;
}

void write_cell(std::ostream& out, int x, int y, int width, const PictureCell& cell) {
  const bool marked = cell.title.front() == '*';
  out << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << kCellHeight
      << "\" rx=\"4\" fill=\"" << kColours[cell.group % kColours.size()] << "\" stroke=\""
      << (marked ? "#c00000" : "#555555") << "\" stroke-width=\"" << (marked ? 3 : 1) << "\"/>\n";
  write_text(out, x + 6, y + 15, cell.title, "bold");
  write_text(out, x + 6, y + 30, cell.coordinates);
}

}  // namespace

std::string draw_svg(const topology::RankGrid& grid, const RankMapOptions& options) {
  const Picture picture = make_picture(grid, options);
  const Extent extent = measure_picture(picture);
  std::ostringstream out;
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << extent.width << "\" height=\"" << extent.height
      << "\" font-family=\"monospace\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  write_text(out, kMapMargin, kMapMargin + 12, picture.title, "bold");
  write_text(out, kMapMargin, kMapMargin + 30, picture.legend);
  int y = kMapMargin + 44;
  for (const PictureRow& row : picture.rows) {
    write_text(out, kMapMargin, y + (row.cells.empty() ? 14 : 22), row.label);
    int x = kMapMargin + extent.label;
    for (const PictureCell& cell : row.cells) {
      if (cell.rank < 0) {
        write_text(out, x + 4, y + 22, "..");
        x += kGapWidth;
        continue;
      }
      write_cell(out, x, y, extent.cell, cell);
      x += extent.cell + 4;
    }
    y += row.cells.empty() ? kGapHeight : kCellHeight + 6;
  }
  out << "</svg>\n";
  return out.str();
}

}  // namespace metroplex::draw

// Two kinds of figures: heat maps in panels, and line charts.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace metroplex::bench {

struct Panel {
  std::string title;
  std::vector<std::vector<double>> values;              // [row][column], rows from the bottom
  std::vector<std::pair<double, double>> line, dashed;  // in units of columns and rows, 0 at the edge of the first
};
struct Heat {
  std::string title, x_title, y_title;
  std::vector<std::string> columns, rows;
  std::vector<Panel> panels;
};
// Values are gains: 0 is white, losses are red, gains are blue up to `most`.
std::string render_svg(const Heat& heat, double most);

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool joined = true;  // else separate squares
};
struct Chart {
  std::string title, x_title, y_title;
  double x_from = 0, x_to = 1, y_to = 1;
  std::vector<Line> lines;
};
std::string render_svg(const Chart& chart);

}  // namespace metroplex::bench

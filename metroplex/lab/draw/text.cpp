#include "draw/text.h"

#include <algorithm>
#include <cstdio>

namespace metroplex::draw {

std::string format(const char* pattern, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, pattern, value);
  return buffer;
}

std::string pad_left(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string pad_right(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

std::string svg_text(double x, double y, const std::string& attributes, const std::string& text) {
  return "<text x=\"" + format("%.5g", x) + "\" y=\"" + format("%.5g", y) + "\"" + attributes + ">" + text +
         "</text>\n";
}

void write_text(std::ostream& out, double x, double y, const std::string& text, const char* weight) {
  out << "<text x=\"" << x << "\" y=\"" << y << "\" font-weight=\"" << weight << "\">" << text << "</text>\n";
}

}  // namespace metroplex::draw

// Helpers of the painters: numbers, padding, and text elements of SVG.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>

namespace metroplex::draw {

// `pattern`: a printf conversion of one double.
std::string format(const char* pattern, double value);
// Adds spaces before or after `text` up to `width` bytes.
std::string pad_left(const std::string& text, size_t width);
std::string pad_right(const std::string& text, size_t width);

// `text` must be escaped. `attributes` begins with a space or is empty.
std::string svg_text(double x, double y, const std::string& attributes, const std::string& text);
void write_text(std::ostream& out, double x, double y, const std::string& text, const char* weight = "normal");

}  // namespace metroplex::draw

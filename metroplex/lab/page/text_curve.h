// Draws curves and points for the terminal, with braille dots or ASCII marks.
#pragma once

#include <string>
#include <vector>

#include "page/run_file.h"

namespace metroplex::page {

struct TextCurve {
  std::string label;
  const Series* series = nullptr;
  bool connected = true;  // by lines; false: only points
};

struct TextChartOptions {
  int columns = 100, lines = 18;  // of the complete picture
  bool ascii = false;             // a mark per curve instead of braille dots
  bool colour = false;            // ANSI colors; several curves without colors have marks
};

inline constexpr int kLeastColumns = 30, kLeastLines = 6;

// Returns a title line, the curves with axes, and a legend line. The text ends with a newline. NaNs interrupt a
// curve.
std::string draw_curves(const std::string& title, const std::vector<TextCurve>& curves,
                        const TextChartOptions& options);

}  // namespace metroplex::page

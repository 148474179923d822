#include "draw/experts.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace metroplex::draw {
namespace {

using base::concat;

// Heat levels as characters, blocks, and ANSI colors from blue over grey to red.
struct Level {
  double below;
  const char *letter, *block;
  int colour;
  const char* words;
};
constexpr std::array<Level, 7> kLevels = {{{0.05, " ", " ", 18, "none"},
                                           {0.5, ".", "▁", 25, "< 0.5"},
                                           {0.8, "-", "▂", 74, "< 0.8"},
                                           {1.25, "=", "▄", 250, "even"},
                                           {2, "+", "▅", 222, "< 2"},
                                           {4, "*", "▇", 209, "< 4"},
                                           {1e300, "#", "█", 160, "more"}}};

const Level& find_level(double heat) {
  return *std::find_if(kLevels.begin(), kLevels.end() - 1, [&](const Level& level) { return heat < level.below; });
}

std::string render_cell(const Level& level, int width, Ink ink) {
  std::string cell;
  for (int i = 0; i < width; ++i) cell += ink == Ink::plain ? level.letter : ink == Ink::blocks ? level.block : " ";
  return ink == Ink::colour ? concat("\033[48;5;", level.colour, "m", cell, "\033[0m") : cell;
}

std::vector<double> average_cells(const std::vector<double>& cells, size_t each) {
  std::vector<double> out;
  for (size_t begin = 0; begin < cells.size(); begin += each) {
    const size_t end = std::min(begin + each, cells.size());
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += cells[i];
    out.push_back(sum / static_cast<double>(end - begin));
  }
  return out;
}

std::string heat_text(const Heat& heat, const ExpertPictureOptions& options) {
  size_t label = 0, remark = heat.remarks.size();
  for (const Heat::Row& row : heat.rows) {
    label = std::max(label, row.label.size());
    remark = std::max(remark, row.remark.size());
  }
  const size_t cells = heat.rows.at(0).cells.size();
  const size_t margin = label + 6 + (remark > 0 ? remark + 2 : 0);
  const size_t available = std::max<size_t>(10, static_cast<size_t>(std::max(options.columns, 0)) > margin
                                                    ? static_cast<size_t>(options.columns) - margin
                                                    : 0);
  const size_t each = (cells + available - 1) / available, shown = (cells + each - 1) / each;
  const int width = static_cast<int>(std::clamp<size_t>(available / shown, 1, 4));
  const size_t bars = shown * static_cast<size_t>(width);
  std::string out = heat.title + (each > 1 ? concat(" (", each, " ", heat.cell, "s in a cell)") : "") + "\n";
  if (!heat.remarks.empty())
    out += std::string(label + bars + 6, ' ') + std::string(remark - heat.remarks.size(), ' ') + heat.remarks + "\n";
  for (const Heat::Row& row : heat.rows) {
    out += "  " + row.label + std::string(label - row.label.size(), ' ') + " |";
    for (const double cell : average_cells(row.cells, each)) out += render_cell(find_level(cell), width, options.ink);
    out += row.remark.empty() ? "|\n" : "|  " + row.remark + "\n";
  }
  return out;
}

}  // namespace

std::string draw_text(const files::ExpertTrace& trace, const ExpertPictureOptions& options) {
  const files::ExpertTraceHead& head = trace.head;
  std::string out =
      concat(head.layers.size(), " layers of ", head.num_experts, " experts, ", head.topk, " for a token; ep ",
             head.ep, ", etp ", head.etp, "; ", trace.steps.size(), " iterations\n");
  for (const Heat& heat : expert_heats(trace, options)) out += "\n" + heat_text(heat, options);
  out += "\nload over the mean of its row:";
  for (const Level& level : kLevels) out += concat("  [", render_cell(level, 1, options.ink), "] ", level.words);
  return out +
         "\nexperts, ranks: the most loaded one over the mean, of all iterations together;"
         "\nstep: of each iteration, their mean; worst: of the worst iteration\n";
}

}  // namespace metroplex::draw

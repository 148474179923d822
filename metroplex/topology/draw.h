// The rank map as a picture: a row for each node (or each pipeline stage), a cell for each rank with its
// coordinates, a colour for each group of one kind. The terminal and the SVG picture share the choice of what to
// show, and leave out the middle of large worlds. Text only: nothing here opens a file.
#pragma once

#include <string>
#include <vector>

#include "topology/cluster.h"
#include "topology/megatron_groups.h"
#include "topology/rank_grid.h"

namespace metroplex::topology {

struct DrawOptions {
  AxisSet colour_by = Axis::tp;  // the kind whose groups get the colours
  int gpus_per_node = 0;         // 0: rows are pipeline stages; else nodes, and the reach of each kind is told
  int marked_rank = -1;          // drawn with a mark; -1: none
  bool colour = true;            // ANSI colours (terminal only)
  int max_columns = 8;           // longer rows are wrapped where all lines fit into max_rows,
  int max_rows = 16;             // else the middle of long rows, and of many rows, is left out
  int line_columns = 0;  // of the terminal: text is wrapped, and rows have fewer ranks, at least 3; 0: no limit
};

// The sizes of both grids in one line: "16 ranks: tp 2, cp 1, dp 2, pp 4; experts: etp 2, ep 1, edp 2; order ...".
std::string summary(const RankGrid& grid);
// Ends with a newline.
std::string draw_terminal(const RankGrid& grid, const DrawOptions& options);
std::string draw_svg(const RankGrid& grid, const DrawOptions& options);
// A table: which kinds of groups stay inside a node, which cross.
std::string draw_reach(const RankGrid& grid, int gpus_per_node);
// Coordinates of one rank and all the groups that it belongs to; nodes too when gpus_per_node > 0.
std::string draw_rank(const RankGrid& grid, int rank, int gpus_per_node);
// The groups of one list, one a line, "0: 0 2 4 6". Long groups and long lists are abbreviated.
std::string draw_groups(const RankGroups& groups, int gpus_per_node);

// Restricts the JSON output. `rank`: only this rank and its groups. `group`: adds the key "group".
struct JsonFilter {
  std::optional<int> rank = {};
  std::optional<NamedGroups> group = {};
};

// Sizes, coordinates of every rank, the groups of every kind and the groups by Megatron's names.
std::string to_json(const RankGrid& grid, int gpus_per_node, const MegatronOptions& options = {},
                    const JsonFilter& filter = {});

// What a picture of the rank map shows, before it becomes text or SVG: rows of cells, with the middle of long rows
// and of long lists of rows left out.

struct PictureCell {
  int rank;                 // -1: ranks are left out here
  int group = 0;            // number of its group in the coloured kind
  std::string title;        // "13 #6", with '*' for the marked rank
  std::string coordinates;  // "t1 d0 p3": axes above 1
};

struct PictureRow {
  std::string label;               // "node 0", "stage 1", or how many rows are left out
  std::vector<PictureCell> cells;  // empty where rows are left out
};

struct Picture {
  std::string title;
  std::string legend;
  std::vector<PictureRow> rows;
  size_t label_width = 0;
  size_t cell_width = 0;
};

// Throws when the options name a rank outside the world or too few rows or columns (3 at least).
Picture make_picture(const RankGrid& grid, const DrawOptions& options);

}  // namespace metroplex::topology

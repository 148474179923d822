// Draws the rank map: a row per node (or pipeline stage), a cell per rank with its coordinates, a color per group of
// one kind. Terminal and SVG output share the selection of cells, and omit the middle of large worlds. Returns text
// only; opens no file.
#pragma once

#include <string>
#include <vector>

#include "topology/cluster.h"
#include "topology/megatron_groups.h"
#include "topology/rank_grid.h"

namespace metroplex::draw {

struct RankMapOptions {
  topology::AxisSet colour_by = topology::Axis::tp;  // kind whose groups are colored
  int gpus_per_node = 0;  // 0: rows are pipeline stages; else nodes, with the reach of each kind
  int marked_rank = -1;   // -1: none
  bool colour = true;     // ANSI colors (terminal only)
  int max_columns = 8;    // longer rows are wrapped if all lines fit into max_rows,
  int max_rows = 16;      // else the middle of long rows and of the list of rows is omitted
  int line_columns = 0;   // terminal width: wraps text and shortens rows to at least 3 ranks; 0: no limit
};

// Returns the sizes of both grids: "16 ranks: tp 2, cp 1, dp 2, pp 4; experts: etp 2, ep 1, edp 2; order ...".
std::string summary(const topology::RankGrid& grid);
// The text ends with a newline.
std::string draw_terminal(const topology::RankGrid& grid, const RankMapOptions& options);
std::string draw_svg(const topology::RankGrid& grid, const RankMapOptions& options);
// Returns a table of the kinds of groups that stay within a node and those that cross nodes.
std::string draw_reach(const topology::RankGrid& grid, int gpus_per_node);
// Returns the coordinates of one rank and all its groups, with nodes if gpus_per_node > 0.
std::string draw_rank(const topology::RankGrid& grid, int rank, int gpus_per_node);
// Returns one group per line, "0: 0 2 4 6". Abbreviates long groups and long lists.
std::string draw_groups(const topology::RankGroups& groups, int gpus_per_node);

// Restricts the JSON output. `rank`: only this rank and its groups. `group`: adds the key "group".
struct JsonFilter {
  std::optional<int> rank = {};
  std::optional<topology::NamedGroups> group = {};
};

// Returns sizes, coordinates of every rank, the groups of every kind, and the groups by Megatron's names.
std::string to_json(const topology::RankGrid& grid, int gpus_per_node, const topology::MegatronOptions& options = {},
                    const JsonFilter& filter = {});

// Content of a rank map before rendering as text or SVG: rows of cells, without the middle of long rows and long
// lists of rows.

struct PictureCell {
  int rank;                 // -1: gap for omitted ranks
  int group = 0;            // index of its group in the colored kind
  std::string title;        // "13 #6", with '*' for the marked rank
  std::string coordinates;  // "t1 d0 p3": axes with size > 1
};

struct PictureRow {
  std::string label;               // "node 0", "stage 1", or the number of omitted rows
  std::vector<PictureCell> cells;  // empty for omitted rows
};

struct Picture {
  std::string title;
  std::string legend;
  std::vector<PictureRow> rows;
  size_t label_width = 0;
  size_t cell_width = 0;
};

// Throws if the options contain a rank outside the world, or fewer than 3 rows or columns.
Picture make_picture(const topology::RankGrid& grid, const RankMapOptions& options);

}  // namespace metroplex::draw

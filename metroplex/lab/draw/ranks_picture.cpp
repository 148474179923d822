#include "draw/ranks.h"

#include <algorithm>

#include "base/error.h"

namespace metroplex::draw {

namespace {

struct Row {
  std::string label;
  topology::Ranks ranks;
};

std::vector<Row> build_rows(const topology::RankGrid& grid, int gpus_per_node) {
  std::vector<Row> rows;
  if (gpus_per_node > 0) {
    const topology::Cluster cluster(grid.world_size(), gpus_per_node);
    for (int rank = 0; rank < cluster.world; ++rank) {
      if (cluster.local_rank(rank) == 0) rows.push_back({base::concat("node ", cluster.node(rank)), {}});
      rows.back().ranks.push_back(rank);
    }
    return rows;
  }
  const topology::RankGroups stages =
      grid.groups({topology::Axis::tp, topology::Axis::gtp, topology::Axis::dp, topology::Axis::cp});
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    rows.push_back({base::concat("stage ", stage), stages[stage]});
    std::sort(rows.back().ranks.begin(), rows.back().ranks.end());
  }
  return rows;
}

// Wraps rows longer than `columns` if all lines fit; otherwise returns the rows unchanged, to be abbreviated.
std::vector<Row> wrap_rows(std::vector<Row> rows, size_t columns, size_t most) {
  std::vector<Row> lines;
  for (const Row& row : rows) {
    for (size_t begin = 0; begin < row.ranks.size(); begin += columns) {
      const size_t end = std::min(row.ranks.size(), begin + columns);
      lines.push_back({begin == 0 ? row.label : "", {row.ranks.begin() + begin, row.ranks.begin() + end}});
      if (lines.size() > most) return rows;
    }
  }
  return lines;
}

std::string short_coordinates(const topology::RankGrid& grid, int rank) {
  const topology::Coordinates at = grid.coordinates(rank);
  std::string text;
  for (topology::Axis axis : {topology::Axis::tp, topology::Axis::gtp, topology::Axis::cp, topology::Axis::dp,
                              topology::Axis::pp, topology::Axis::ep}) {
    if (grid.size(axis) > 1) text += base::concat(text.empty() ? "" : " ", name(axis)[0], at.at(axis));
  }
  return text;
}

// Uses all items if there are at most `most`; else the first `most` - 2 and the last one, with a gap between.
template <class Item, class Use, class Gap>
void abbreviate(const std::vector<Item>& items, int most, const Use& use, const Gap& gap) {
  const int count = static_cast<int>(items.size());
  for (int k = 0; k < count; ++k) {
    if (count > most && k == most - 2) {
      gap(count - most + 1);
      k = count - 1;
    }
    use(items[k]);
  }
}

std::string make_legend(const topology::RankGrid& grid, const RankMapOptions& options, size_t num_groups) {
  std::string letters;
  for (topology::Axis axis : {topology::Axis::tp, topology::Axis::gtp, topology::Axis::cp, topology::Axis::dp,
                              topology::Axis::pp, topology::Axis::ep}) {
    if (grid.size(axis) > 1) letters += base::concat(letters.empty() ? "" : ", ", name(axis)[0], " = ", name(axis));
  }
  std::string text = base::concat("colour and # = ", to_string(options.colour_by), " group (", num_groups, ")");
  if (!letters.empty()) text += "; " + letters;
  if (options.marked_rank >= 0) text += base::concat("; * = rank ", options.marked_rank);
  return text;
}

}  // namespace

Picture make_picture(const topology::RankGrid& grid, const RankMapOptions& options) {
  MPX_CHECK(options.max_rows >= 3 && options.max_columns >= 3, "topology", "a picture of ", options.max_rows,
            " rows and ", options.max_columns, " columns is too small; take at least 3 of each");
  MPX_CHECK(options.marked_rank < grid.world_size(), "topology", "rank ", options.marked_rank,
            " is not in the world of ", grid.world_size(), "; ranks go from 0 to ", grid.world_size() - 1);
  const topology::RankGroups groups = grid.groups(options.colour_by);
  std::vector<int> group_of(grid.world_size());
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int rank : groups[g]) group_of[rank] = static_cast<int>(g);
  }
  Picture picture;
  picture.title = summary(grid);
  picture.legend = make_legend(grid, options, groups.size());
  const auto add_row = [&](const Row& row) {
    PictureRow drawn{row.label, {}};
    const auto add_cell = [&](int rank) {
      const char* mark = rank == options.marked_rank ? "*" : "";
      drawn.cells.push_back(
          {rank, group_of[rank], base::concat(mark, rank, " #", group_of[rank]), short_coordinates(grid, rank)});
      picture.cell_width =
          std::max({picture.cell_width, drawn.cells.back().title.size(), drawn.cells.back().coordinates.size()});
    };
    abbreviate(row.ranks, options.max_columns, add_cell, [&](int) { drawn.cells.push_back({-1, 0, "", ""}); });
    picture.label_width = std::max(picture.label_width, row.label.size() + 1);
    picture.rows.push_back(std::move(drawn));
  };
  const char* kind = options.gpus_per_node > 0 ? "nodes" : "stages";
  const auto rows = wrap_rows(build_rows(grid, options.gpus_per_node), options.max_columns, options.max_rows);
  abbreviate(rows, options.max_rows, add_row, [&](int left_out) {
    picture.rows.push_back({base::concat(".. ", left_out, " more ", kind, " .."), {}});
  });
  return picture;
}

}  // namespace metroplex::draw

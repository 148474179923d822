#include "draw/ranks.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "draw/text.h"

namespace metroplex::draw {

namespace {

constexpr std::array<int, 12> kTerminalColours = {117, 216, 150, 183, 222, 152, 211, 187, 111, 180, 157, 225};

std::string paint_cell(const std::string& text, int group, bool colour) {
  if (!colour) return "|" + text;
  return base::concat(" \x1b[30;48;5;", kTerminalColours[group % kTerminalColours.size()], "m", text, "\x1b[0m");
}

void draw_row(std::string& out, const Picture& picture, const PictureRow& row, bool colour) {
  for (int line = 0; line < 2; ++line) {
    out += pad_right(line == 0 ? row.label : "", picture.label_width);
    for (const PictureCell& cell : row.cells) {
      if (cell.rank < 0) {
        out += base::concat(colour ? " " : "|", line == 0 ? " .. " : "    ");
        continue;
      }
      out += paint_cell(" " + pad_right(line == 0 ? cell.title : cell.coordinates, picture.cell_width) + " ",
                        cell.group, colour);
    }
    out += colour ? "\n" : "|\n";
  }
}

std::string join_ranks(const topology::Ranks& ranks, size_t limit) {
  std::string text;
  for (size_t k = 0; k < ranks.size(); ++k) {
    if (ranks.size() > limit && k == limit - 2) {
      text += base::concat(" .. (", ranks.size(), " ranks) ..");
      k = ranks.size() - 2;
      continue;
    }
    text += (text.empty() ? "" : " ") + std::to_string(ranks[k]);
  }
  return text;
}

std::string nodes_note(const topology::Cluster& cluster, const topology::Ranks& group) {
  const topology::Reach one = reach(cluster, {group});
  return one.inter_node() ? base::concat("  (", one.max_nodes, " nodes)") : "  (one node)";
}

}  // namespace

std::string summary(const topology::RankGrid& grid) {
  const auto size = [&](topology::Axis axis) { return base::concat(name(axis), " ", grid.size(axis)); };
  std::string text =
      base::concat(grid.world_size(), grid.world_size() == 1 ? " rank: " : " ranks: ", size(topology::Axis::tp), ", ",
                   size(topology::Axis::cp), ", ", size(topology::Axis::dp), ", ", size(topology::Axis::pp));
  if (grid.size(topology::Axis::gtp) > 1) text += ", " + size(topology::Axis::gtp);
  if (grid.vpp() > 1) text += base::concat(", ", grid.vpp(), " model chunks a stage");
  std::string order = grid.dense().order();
  const std::string weight_shards = "-" + std::string(name(topology::Axis::gtp));
  if (grid.size(topology::Axis::gtp) == 1 && order.ends_with(weight_shards))
    order.resize(order.size() - weight_shards.size());
  return base::concat(text, "; experts: ", size(topology::Axis::etp), ", ", size(topology::Axis::ep), ", ",
                      size(topology::Axis::edp), "; order ", order);
}

static std::string wrap_words(const std::string& text, size_t columns) {
  constexpr const char* kIndent = "  ";
  std::istringstream words(text);
  std::string out, line;
  for (std::string word; words >> word;) {
    const bool fits = line.empty() || line.size() + 1 + word.size() <= columns;
    if (!fits) out += std::exchange(line, kIndent) + "\n";
    line += (line.empty() || !fits ? "" : " ") + word;
  }
  return out + line;
}

static Picture make_narrow_picture(const topology::RankGrid& grid, RankMapOptions options) {
  constexpr int kMinCells = 3, kBetweenCells = 3;
  Picture picture = make_picture(grid, options);
  const auto available = options.line_columns - static_cast<int>(picture.label_width) - 1;
  const int fit = std::max(kMinCells, available / (static_cast<int>(picture.cell_width) + kBetweenCells));
  if (fit >= options.max_columns) return picture;
  options.max_columns = fit;
  return make_picture(grid, options);
}

std::string draw_terminal(const topology::RankGrid& grid, const RankMapOptions& options) {
  const bool narrow = options.line_columns > 0;
  const Picture picture = narrow ? make_narrow_picture(grid, options) : make_picture(grid, options);
  const auto columns = static_cast<size_t>(options.line_columns);
  const auto wrap = [&](const std::string& text) { return narrow ? wrap_words(text, columns) : text; };
  std::string out = wrap(picture.title) + "\n" + wrap(picture.legend) + "\n\n";
  for (const PictureRow& row : picture.rows) {
    if (row.cells.empty()) {
      out += row.label + "\n";
    } else {
      draw_row(out, picture, row, options.colour);
    }
    out += options.colour ? "\n" : "";
  }
  return out;
}

std::string draw_reach(const topology::RankGrid& grid, int gpus_per_node) {
  const topology::Cluster cluster(grid.world_size(), gpus_per_node);
  std::string out =
      base::concat(cluster.num_nodes(), cluster.num_nodes() == 1 ? " node" : " nodes", " of ", gpus_per_node, "\n");
  for (const auto& [kind, far] : list_group_reach(cluster, grid)) {
    std::string where = "inside a node";
    if (far.inter_node()) {
      where = base::concat(far.num_crossing == far.num_groups ? "crosses nodes" : "some cross nodes", ", up to ",
                           far.max_nodes);
    }
    out += base::concat("  ", pad_right(to_string(kind.axes), 10),
                        pad_right(base::concat(far.num_groups, " x ", far.group_size), 12), pad_right(where, 28),
                        kind.purpose, "\n");
  }
  return out;
}

std::string draw_rank(const topology::RankGrid& grid, int rank, int gpus_per_node) {
  std::string out = base::concat("rank ", rank, ": ", grid.format_coordinates(rank));
  if (gpus_per_node > 0) {
    const topology::Cluster cluster(grid.world_size(), gpus_per_node);
    out += base::concat(", node ", cluster.node(rank), " place ", cluster.local_rank(rank));
  }
  out += "\n";
  for (const topology::GroupKind& kind : topology::kGroupKinds) {
    const topology::Ranks group = grid.group_ranks(rank, kind.axes);
    out += base::concat("  ", pad_right(to_string(kind.axes), 10), "index ",
                        pad_right(std::to_string(grid.index_in_group(rank, kind.axes)), 4), " of  ",
                        join_ranks(group, 20));
    if (gpus_per_node > 0 && group.size() > 1) {
      out += nodes_note(topology::Cluster(grid.world_size(), gpus_per_node), group);
    }
    out += "\n";
  }
  const topology::Ranks stages = grid.group_ranks(rank, topology::Axis::pp);
  const topology::Ranks embedding = topology::embedding_ranks(stages);
  out += base::concat("  embedding shared by  ", join_ranks(embedding, 20),
                      std::count(embedding.begin(), embedding.end(), rank) > 0 ? "" : "  (not this rank)", "\n");
  return out;
}

std::string draw_groups(const topology::RankGroups& groups, int gpus_per_node) {
  constexpr size_t kMaxLines = 64;
  int world = 1;
  for (const topology::Ranks& group : groups) {
    for (int rank : group) world = std::max(world, rank + 1);
  }
  std::string out;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups.size() > kMaxLines && g == kMaxLines - 4) {
      out += base::concat("  .. ", groups.size() - kMaxLines + 1, " more ..\n");
      g = groups.size() - 4;
      continue;
    }
    out += base::concat("  ", pad_right(base::concat(g, ":"), 6), join_ranks(groups[g], 32));
    if (gpus_per_node > 0 && groups[g].size() > 1)
      out += nodes_note(topology::Cluster(world, gpus_per_node), groups[g]);
    out += "\n";
  }
  return out;
}

}  // namespace metroplex::draw

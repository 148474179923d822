#include "topology/rank_grid.h"

#include <limits>

#include "base/error.h"
#include "config/derived.h"

namespace metroplex::topology {

namespace {

struct Degree {
  const char* key;
  int64_t value;
};

void check_degrees(int world, const config::Parallel& parallel, int gtp) {
  MPX_CHECK(world > 0, "topology", "the world has ", world, " ranks; it needs at least 1");
  const Degree degrees[] = {{"tensor_model_parallel_size", parallel.tp()},
                            {"pipeline_model_parallel_size", parallel.pp()},
                            {"virtual_pipeline_model_parallel_size", parallel.vpp()},
                            {"context_parallel_size", parallel.cp()},
                            {"expert_model_parallel_size", parallel.ep()},
                            {"expert_tensor_parallel_size", parallel.etp()},
                            {"num_distributed_optimizer_instances", parallel.num_distributed_optimizer_instances},
                            {"gtp_remat_size", gtp}};
  for (const auto& [key, value] : degrees) {
    MPX_CHECK(value >= 1 && value <= std::numeric_limits<int>::max() / 2, "topology", "parallel.", key, " is ", value,
              "; a degree is a whole number of ranks from 1 up");
  }
}

// Returns `world` divided by the product of `degrees`, which must divide it.
int quotient(int world, const char* product_name, std::initializer_list<int64_t> degrees, const char* follows) {
  int64_t product = 1;
  for (int64_t degree : degrees) {
    // Stops once the product exceeds the world, to avoid overflow.
    product = product > world ? product : product * degree;
  }
  MPX_CHECK(world % product == 0, "topology", world, " ranks are not a multiple of ", product_name, " = ", product,
            "; choose degrees whose product divides ", world, ", or another number of ranks (", follows,
            " is what remains)");
  return static_cast<int>(world / product);
}

// In the dense grid, weight shards vary right after tp unless the order places them explicitly.
std::string dense_order(const std::string& order, int gtp) {
  if (gtp == 1) return order;
  std::string full;
  bool named = false;
  for (const std::string& text : split_names(order)) named = named || text == name(Axis::gtp);
  for (const std::string& text : split_names(order)) {
    full += (full.empty() ? "" : "-") + text;
    if (text == name(Axis::tp) && !named) full += "-" + std::string(name(Axis::gtp));
  }
  return full;
}

GridSizes dense_sizes(int world, const config::Parallel& parallel, int gtp) {
  check_degrees(world, parallel, gtp);
  GridSizes sizes;
  sizes.dp = gtp == 1 ? quotient(world, "tp*cp*pp", {parallel.tp(), parallel.cp(), parallel.pp()}, "dp")
                      : quotient(world, "tp*gtp*cp*pp", {parallel.tp(), gtp, parallel.cp(), parallel.pp()}, "dp");
  sizes.tp = static_cast<int>(parallel.tp());
  sizes.gtp = gtp;
  sizes.cp = static_cast<int>(parallel.cp());
  sizes.pp = static_cast<int>(parallel.pp());
  sizes.order = dense_order(parallel.order, gtp);
  return sizes;
}

GridSizes expert_sizes(int world, const config::Parallel& parallel) {
  GridSizes sizes;
  sizes.dp = quotient(world, "etp*ep*pp", {parallel.etp(), parallel.ep(), parallel.pp()}, "edp");
  sizes.tp = static_cast<int>(parallel.etp());
  sizes.ep = static_cast<int>(parallel.ep());
  sizes.pp = static_cast<int>(parallel.pp());
  sizes.order = parallel.order;
  return sizes;
}

Axis expert_alias(Axis axis) {
  if (axis == Axis::etp) return Axis::tp;
  if (axis == Axis::edp) return Axis::dp;
  return axis;
}

bool has_expert_axes(AxisSet axes) {
  return axes.contains(Axis::etp) || axes.contains(Axis::ep) || axes.contains(Axis::edp);
}

AxisSet to_grid_axes(AxisSet axes) {
  if (!has_expert_axes(axes)) return axes;
  AxisSet local;
  for (const AxisInfo& axis : kAxes) {
    if (axes.contains(axis.axis)) local.insert(expert_alias(axis.axis));
  }
  return local;
}

}  // namespace

int Coordinates::at(Axis axis) const {
  switch (axis) {
    case Axis::tp:
      return tp;
    case Axis::gtp:
      return gtp;
    case Axis::cp:
      return cp;
    case Axis::dp:
      return dp;
    case Axis::pp:
      return pp;
    case Axis::etp:
      return etp;
    case Axis::ep:
      return ep;
    case Axis::edp:
      return edp;
  }
  MPX_ASSERT(false, "no such axis");
}

RankGrid::RankGrid(int world, const config::Parallel& parallel, int gtp)
    : dense_(dense_sizes(world, parallel, gtp)),
      expert_(expert_sizes(world, parallel)),
      vpp_(static_cast<int>(parallel.vpp())),
      num_instances_(static_cast<int>(parallel.num_distributed_optimizer_instances)) {
  for (const int64_t level : config::context_levels(parallel)) context_levels_.push_back(static_cast<int>(level));
  MPX_CHECK(context_levels_.empty() ||
                (context_levels_.size() == 2 && int64_t{context_levels_[0]} * context_levels_[1] == size(Axis::cp)),
            "topology", "parallel.hierarchical_context_parallel_sizes '",
            parallel.hierarchical_context_parallel_sizes,
            "' are not two sizes whose product is cp = ", size(Axis::cp), "; choose two such, or leave them out");
  const int dp = size(Axis::dp), edp = size(Axis::edp), pp = size(Axis::pp);
  MPX_CHECK(vpp_ == 1 || pp > 1, "topology", "parallel.virtual_pipeline_model_parallel_size is ", vpp_,
            " but pipeline_model_parallel_size is 1; the interleaved schedule needs pp above 1");
  const bool pp_agrees = split_names(parallel.order).back() == "pp" || pp == 1;
  MPX_CHECK(pp_agrees || dp == edp, "topology", "parallel.order '", parallel.order,
            "' does not end with pp, and data parallel is ", dp, " for dense layers but ", edp,
            " for experts; end the order with pp, or choose etp*ep = tp*cp");
  MPX_CHECK(pp_agrees || groups(Axis::pp) == expert_.groups(Axis::pp), "topology", "parallel.order '", parallel.order,
            "' gives the dense grid and the experts different pipeline groups; end the order with pp");
  const int sharded = size({Axis::dp, Axis::cp});
  MPX_CHECK(sharded % num_instances_ == 0, "topology", "dp*cp = ", sharded,
            " is not a multiple of parallel.num_distributed_optimizer_instances = ", num_instances_,
            "; choose a divisor of dp*cp");
  MPX_CHECK(edp % num_instances_ == 0, "topology", "edp = ", edp,
            " is not a multiple of parallel.num_distributed_optimizer_instances = ", num_instances_,
            "; choose a divisor of edp too");
}

int RankGrid::size(Axis axis) const {
  return info(axis).dense ? dense_.size(axis) : expert_.size(expert_alias(axis));
}

int RankGrid::size(AxisSet axes) const {
  int product = 1;
  for (const AxisInfo& axis : kAxes) {
    if (axes.contains(axis.axis)) product *= size(axis.axis);
  }
  return product;
}

void RankGrid::check_rank(int rank) const {
  MPX_CHECK(rank >= 0 && rank < world_size(), "topology", "rank ", rank, " is not in the world of ", world_size(),
            "; ranks go from 0 to ", world_size() - 1);
}

Coordinates RankGrid::coordinates(int rank) const {
  check_rank(rank);
  return {.tp = dense_.coordinate(rank, Axis::tp),
          .gtp = dense_.coordinate(rank, Axis::gtp),
          .cp = dense_.coordinate(rank, Axis::cp),
          .dp = dense_.coordinate(rank, Axis::dp),
          .pp = dense_.coordinate(rank, Axis::pp),
          .etp = expert_.coordinate(rank, Axis::tp),
          .ep = expert_.coordinate(rank, Axis::ep),
          .edp = expert_.coordinate(rank, Axis::dp)};
}

int RankGrid::rank(const Coordinates& coordinates) const {
  int rank = 0;
  for (const Axis axis : {Axis::tp, Axis::gtp, Axis::cp, Axis::dp, Axis::pp}) {
    const int at = coordinates.at(axis);
    MPX_CHECK(at >= 0 && at < size(axis), "topology", "coordinate ", name(axis), " ", at, " is outside ", name(axis),
              " = ", size(axis), "; coordinates start at 0");
    rank += at * dense_.stride(axis);
  }
  return rank;
}

const OrderedGrid& RankGrid::select_grid(AxisSet axes) const {
  if (!has_expert_axes(axes)) return dense_;
  for (const AxisInfo& axis : kAxes) {
    MPX_CHECK(!axes.contains(axis.axis) || axis.expert, "topology", "'", to_string(axes), "' mixes ", axis.name,
              " of the dense grid (tp, gtp_remat, cp, dp, pp) with axes of the expert grid (etp, ep, edp, pp); "
              "take all from one");
  }
  return expert_;
}

RankGroups RankGrid::groups(AxisSet axes) const { return select_grid(axes).groups(to_grid_axes(axes)); }

Ranks RankGrid::group_ranks(int rank, AxisSet axes) const {
  check_rank(rank);
  return select_grid(axes).group_ranks(rank, to_grid_axes(axes));
}

int RankGrid::index_in_group(int rank, AxisSet axes) const {
  check_rank(rank);
  return select_grid(axes).index_in_group(rank, to_grid_axes(axes));
}

std::string RankGrid::format_coordinates(int rank) const {
  const Coordinates at = coordinates(rank);
  std::string text = base::concat("tp ", at.tp, " pp ", at.pp, " dp ", at.dp);
  if (size(Axis::cp) > 1) text += base::concat(" cp ", at.cp);
  if (size(Axis::gtp) > 1) text += base::concat(" gtp_remat ", at.gtp);
  if (size(Axis::ep) > 1) text += base::concat(" ep ", at.ep, " etp ", at.etp, " edp ", at.edp);
  return text;
}

}  // namespace metroplex::topology

// rank_groups.json: the rank lists of Megatron's generators and of its full initialization.
#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "conformance/report.h"
#include "topology/megatron_groups.h"
#include "topology/rank_grid.h"

namespace metroplex::conformance {

namespace {

using topology::Axis;

int integer(const Json& from, const char* key, int otherwise) {
  return from.contains(key) && !from.at(key).is_null() ? from.at(key).get<int>() : otherwise;
}

std::string order_of(const Json& from, const std::string& otherwise) {
  return from.contains("order") && from.at("order").is_string() ? from.at("order").get<std::string>() : otherwise;
}

topology::GridSizes grid_sizes(const Json& args) {
  topology::GridSizes sizes;
  sizes.tp = integer(args, "tp", 1);
  sizes.cp = integer(args, "cp", 1);
  sizes.ep = integer(args, "ep", 1);
  sizes.dp = integer(args, "dp", 1);
  sizes.pp = integer(args, "pp", 1);
  sizes.gtp = integer(args, "gtp_remat", 1);
  sizes.order = order_of(args, sizes.order);
  sizes.rank_offset = integer(args, "rank_offset", 0);
  return sizes;
}

config::Parallel parallel_of(const Json& args) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = integer(args, "tp", 1);
  parallel.context_parallel_size = integer(args, "cp", 1);
  parallel.expert_model_parallel_size = integer(args, "ep", 1);
  parallel.pipeline_model_parallel_size = integer(args, "pp", 1);
  parallel.expert_tensor_parallel_size = integer(args, "etp", 0);
  parallel.order = order_of(args, parallel.order);
  return parallel;
}

struct Initialisation {
  config::Parallel parallel;
  topology::MegatronOptions options;
  int gtp = 1;
};

// Applies keyword arguments in Megatron's spelling; an unknown one fails the case.
void apply(const Json& kwargs, Initialisation& init) {
  for (const auto& [key, value] : kwargs.items()) {
    if (value.is_null()) continue;
    config::Parallel& p = init.parallel;
    if (key == "tensor_model_parallel_size") value.get_to(p.tensor_model_parallel_size);
    else if (key == "pipeline_model_parallel_size") value.get_to(p.pipeline_model_parallel_size);
    else if (key == "virtual_pipeline_model_parallel_size") value.get_to(p.virtual_pipeline_model_parallel_size);
    else if (key == "context_parallel_size") value.get_to(p.context_parallel_size);
    else if (key == "expert_model_parallel_size") value.get_to(p.expert_model_parallel_size);
    else if (key == "expert_tensor_parallel_size") value.get_to(p.expert_tensor_parallel_size);
    else if (key == "num_distributed_optimizer_instances") value.get_to(p.num_distributed_optimizer_instances);
    else if (key == "order") value.get_to(p.order);
    else if (key == "hierarchical_context_parallel_sizes")
      value.get_to(init.options.hierarchical_context_parallel_sizes);
    else if (key == "hybrid_context_parallel") value.get_to(init.options.hybrid_context_parallel);
    else if (key == "create_gloo_process_groups") value.get_to(init.options.create_gloo_process_groups);
    else if (key == "gtp_remat_size") value.get_to(init.gtp);
    else throw std::runtime_error("the case has an unknown argument " + key);
  }
}

Json initialised(int world, const Initialisation& init) {
  const topology::RankGrid grid(world, init.parallel, init.gtp);
  Json groups = Json::object();
  for (const auto& family : topology::megatron_groups(grid, init.options)) groups[family.name] = family.groups;
  return groups;
}

std::string compare_groups(const Json& got, const Json& expected) {
  for (const auto& [name, groups] : expected.items()) {
    if (!got.contains(name)) return "no " + name;
    if (const auto problem = compare(got.at(name), groups); !problem.empty()) return name + ": " + problem;
  }
  for (const auto& [name, groups] : got.items()) {
    if (!expected.contains(name)) return name + " is not expected";
  }
  return "";
}

// A rejection is correct if it comes from this module and contains every number of the original message.
template <class Body>
std::string refused(const std::string& original, const Body& body) {
  try {
    body();
  } catch (const base::Error& error) {
    if (error.room() != "topology") return std::string("refused by the wrong room: ") + error.what();
    const auto numbers_of = [](const std::string& text) {
      std::vector<std::string> numbers(1);
      for (unsigned char letter : text) {
        if (std::isdigit(letter)) numbers.back() += static_cast<char>(letter);
        else if (!numbers.back().empty()) numbers.emplace_back();
      }
      return numbers;
    };
    const auto ours = numbers_of(error.what());
    for (const auto& number : numbers_of(original)) {
      if (!number.empty() && std::find(ours.begin(), ours.end(), number) == ours.end()) {
        return std::string("the refusal does not name ") + number + ": " + error.what();
      }
    }
    return "";
  }
  return "accepted, expected to be refused with: " + original;
}

std::string check_initialisation(int world, const Initialisation& init, const Json& error, const Json& groups) {
  if (!error.is_null()) {
    return refused(error.get<std::string>(), [&] { initialised(world, init); });
  }
  const Json got = initialised(world, init);
  return groups.is_null() ? "" : compare_groups(got, groups);
}

// Families of one generator, which a vector file names by its own axes ("tp-ep" of the experts is etp-ep).
std::string compare_families(const topology::OrderedGrid& grid, const Json& expected) {
  for (const auto& [names, groups] : expected.items()) {
    if (const auto problem = compare(grid.groups(topology::parse_axes(names)), groups); !problem.empty()) {
      return names + ": " + problem;
    }
  }
  return "";
}

// coordinates, rank, group_of and index_in_group against the lists of the case.
std::string check_lookups(const topology::RankGrid& grid, const Json& dense) {
  for (const auto& [names, groups] : dense.items()) {
    const auto axes = topology::parse_axes(names);
    for (const auto& group : groups) {
      for (size_t k = 0; k < group.size(); ++k) {
        const int rank = group[k];
        if (Json(grid.group_of(rank, axes)) != group)
          return names + ": group_of(" + std::to_string(rank) + ") differs";
        if (grid.index_in_group(rank, axes) != static_cast<int>(k)) return names + ": index_in_group differs";
        const auto at = grid.coordinates(rank);
        if (grid.rank(at) != rank) return "coordinates do not lead back to the rank";
      }
    }
  }
  return "";
}

void run_configs(const Json& file, Report& report) {
  for (const Json& c : cases(file, "configs")) {
    const int world = c.at("world_size");
    const std::string label = "configs " + c.at("order").get<std::string>() + " world " + std::to_string(world) +
                              " tp " + c.at("tp").dump() + " cp " + c.at("cp").dump() + " ep " + c.at("ep").dump() +
                              " pp " + c.at("pp").dump();
    report.check(label + " dense", c.at("dense"), [&] {
      Json args = c;
      args["ep"] = 1;
      return compare_families(topology::OrderedGrid(grid_sizes(args)), c.value("dense", Json::object()));
    });
    report.check(label + " expert", c.at("expert"), [&] {
      Json args = c;
      args["tp"] = integer(c, "etp", integer(c, "tp", 1));
      args["dp"] = c.at("edp");
      args["cp"] = 1;
      return compare_families(topology::OrderedGrid(grid_sizes(args)), c.value("expert", Json::object()));
    });
    report.check(label + " initialised", [&]() -> std::string {
      const Initialisation init{.parallel = parallel_of(c), .options = {}};
      const Json error = c.value("initialize_model_parallel_error", Json());
      const auto problem =
          check_initialisation(world, init, error, c.value("initialize_model_parallel_groups", Json()));
      if (!problem.empty() || !error.is_null()) return problem;
      const topology::RankGrid grid(world, init.parallel);
      if (grid.size(Axis::dp) != c.at("dp") || grid.size(Axis::edp) != c.at("edp")) return "dp or edp differs";
      return check_lookups(grid, c.value("dense", Json::object()));
    });
  }
}

void run_generators(const Json& file, Report& report) {
  for (const Json& c : cases(file, "generator_errors")) {
    report.check("generator_errors " + c.at("args").dump(), [&]() -> std::string {
      if (c.at("ok").get<bool>())
        return compare(topology::OrderedGrid(grid_sizes(c.at("args"))).order(), c.at("order"));
      return refused(c.at("error"), [&] { topology::OrderedGrid grid(grid_sizes(c.at("args"))); });
    });
  }
  Json offsets = cases(file, "rank_offset");
  if (offsets.is_object()) offsets = Json::array({offsets});
  for (const Json& c : offsets) {
    if (!c.contains("args")) continue;
    report.check("rank_offset " + c.at("args").dump(), c, [&] {
      Json families = c;
      families.erase("args");
      return compare_families(topology::OrderedGrid(grid_sizes(c.at("args"))), families);
    });
  }
  for (const Json& c : cases(file, "masked_orthogonal")) {
    report.check("masked_orthogonal " + c.at("parallel_size").dump() + " " + c.at("mask").dump(), c, [&] {
      std::vector<bool> mask;
      for (const Json& entry : c.at("mask")) mask.push_back(entry.is_boolean() ? entry.get<bool>() : entry != 0);
      return compare(topology::masked_orthogonal_groups(c.at("world_size"), c.at("parallel_size"), mask),
                     c.at("groups"));
    });
  }
  for (const Json& c : cases(file, "embedding_ranks")) {
    report.check("embedding_ranks " + c.at("pp_ranks").dump(), c, [&] {
      const topology::Ranks stages = c.at("pp_ranks");
      const auto problem = compare_list(topology::embedding_ranks(stages), c, "embedding");
      return problem.empty() ? compare_list(topology::position_embedding_ranks(stages), c, "position") : problem;
    });
  }
}

// The number of ranks of a variant: from its groups, or for a rejected one the product of its degrees.
int world_of(const Json& variant) {
  int largest = -1;
  const Json families =
      variant.contains("groups") && variant.at("groups").is_object() ? variant.at("groups") : Json::object();
  for (const auto& [name, groups] : families.items()) {
    for (const auto& group : groups) {
      for (const auto& rank : group) largest = std::max(largest, rank.get<int>());
    }
  }
  if (largest >= 0) return largest + 1;
  const Json& args = variant.at("args");
  return integer(args, "tp", 1) * integer(args, "cp", 1) * integer(args, "dp", 1) * integer(args, "pp", 1);
}

void run_initialisations(const Json& file, Report& report) {
  for (const Json& c : cases(file, "init_errors")) {
    report.check("init_errors world " + c.at("world_size").dump() + " " + c.at("kwargs").dump(), [&] {
      Initialisation init;
      apply(c.at("kwargs"), init);
      return check_initialisation(c.at("world_size"), init, c.at("error"), c.value("groups", Json()));
    });
  }
  for (const Json& c : cases(file, "init_variants")) {
    report.check("init_variants " + c.at("name").get<std::string>(), [&] {
      Initialisation init{.parallel = parallel_of(c.at("args")), .options = {}};
      apply(c.at("kwargs"), init);
      return check_initialisation(world_of(c), init, c.at("error"), c.value("groups", Json()));
    });
  }
}

}  // namespace

void run_rank_groups(const Json& file, Report& report) {
  run_configs(file, report);
  run_generators(file, report);
  run_initialisations(file, report);
}

}  // namespace metroplex::conformance

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

std::string read_order(const Json& from, const std::string& otherwise) {
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
  sizes.order = read_order(args, sizes.order);
  sizes.rank_offset = integer(args, "rank_offset", 0);
  return sizes;
}

config::Parallel read_parallel(const Json& args) {
  config::Parallel parallel;
  parallel.tensor_model_parallel_size = integer(args, "tp", 1);
  parallel.context_parallel_size = integer(args, "cp", 1);
  parallel.expert_model_parallel_size = integer(args, "ep", 1);
  parallel.pipeline_model_parallel_size = integer(args, "pp", 1);
  parallel.expert_tensor_parallel_size = integer(args, "etp", 0);
  parallel.order = read_order(args, parallel.order);
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
    config::Parallel& parallel = init.parallel;
    if (key == "tensor_model_parallel_size") value.get_to(parallel.tensor_model_parallel_size);
    else if (key == "pipeline_model_parallel_size") value.get_to(parallel.pipeline_model_parallel_size);
    else if (key == "virtual_pipeline_model_parallel_size")
      value.get_to(parallel.virtual_pipeline_model_parallel_size);
    else if (key == "context_parallel_size") value.get_to(parallel.context_parallel_size);
    else if (key == "expert_model_parallel_size") value.get_to(parallel.expert_model_parallel_size);
    else if (key == "expert_tensor_parallel_size") value.get_to(parallel.expert_tensor_parallel_size);
    else if (key == "num_distributed_optimizer_instances") value.get_to(parallel.num_distributed_optimizer_instances);
    else if (key == "order") value.get_to(parallel.order);
    else if (key == "hierarchical_context_parallel_sizes")
      value.get_to(init.options.hierarchical_context_parallel_sizes);
    else if (key == "hybrid_context_parallel") value.get_to(init.options.hybrid_context_parallel);
    else if (key == "create_gloo_process_groups") value.get_to(init.options.create_gloo_process_groups);
    else if (key == "gtp_remat_size") value.get_to(init.gtp);
    else throw std::runtime_error("the case has an unknown argument " + key);
  }
}

Json make_grid(int world, const Initialisation& init) {
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
    if (error.room() != "topology") return std::string("refused by the wrong module: ") + error.what();
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
    return refused(error.get<std::string>(), [&] { make_grid(world, init); });
  }
  const Json got = make_grid(world, init);
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

// coordinates, rank, group_ranks and index_in_group against the lists of the case.
std::string check_lookups(const topology::RankGrid& grid, const Json& dense) {
  for (const auto& [names, groups] : dense.items()) {
    const auto axes = topology::parse_axes(names);
    for (const auto& group : groups) {
      for (size_t k = 0; k < group.size(); ++k) {
        const int rank = group[k];
        if (Json(grid.group_ranks(rank, axes)) != group)
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
  for (const Json& test_case : cases(file, "configs")) {
    const int world = test_case.at("world_size");
    const std::string label = "configs " + test_case.at("order").get<std::string>() + " world " +
                              std::to_string(world) + " tp " + test_case.at("tp").dump() + " cp " +
                              test_case.at("cp").dump() + " ep " + test_case.at("ep").dump() + " pp " +
                              test_case.at("pp").dump();
    report.check(label + " dense", test_case.at("dense"), [&] {
      Json args = test_case;
      args["ep"] = 1;
      return compare_families(topology::OrderedGrid(grid_sizes(args)), test_case.value("dense", Json::object()));
    });
    report.check(label + " expert", test_case.at("expert"), [&] {
      Json args = test_case;
      args["tp"] = integer(test_case, "etp", integer(test_case, "tp", 1));
      args["dp"] = test_case.at("edp");
      args["cp"] = 1;
      return compare_families(topology::OrderedGrid(grid_sizes(args)), test_case.value("expert", Json::object()));
    });
    report.check(label + " initialised", [&]() -> std::string {
      const Initialisation init{.parallel = read_parallel(test_case), .options = {}};
      const Json error = test_case.value("initialize_model_parallel_error", Json());
      const auto problem =
          check_initialisation(world, init, error, test_case.value("initialize_model_parallel_groups", Json()));
      if (!problem.empty() || !error.is_null()) return problem;
      const topology::RankGrid grid(world, init.parallel);
      if (grid.size(Axis::dp) != test_case.at("dp") || grid.size(Axis::edp) != test_case.at("edp"))
        return "dp or edp differs";
      return check_lookups(grid, test_case.value("dense", Json::object()));
    });
  }
}

void run_generators(const Json& file, Report& report) {
  for (const Json& test_case : cases(file, "generator_errors")) {
    report.check("generator_errors " + test_case.at("args").dump(), [&]() -> std::string {
      if (test_case.at("ok").get<bool>())
        return compare(topology::OrderedGrid(grid_sizes(test_case.at("args"))).order(), test_case.at("order"));
      return refused(test_case.at("error"), [&] { topology::OrderedGrid grid(grid_sizes(test_case.at("args"))); });
    });
  }
  Json offsets = cases(file, "rank_offset");
  if (offsets.is_object()) offsets = Json::array({offsets});
  for (const Json& test_case : offsets) {
    if (!test_case.contains("args")) continue;
    report.check("rank_offset " + test_case.at("args").dump(), test_case, [&] {
      Json families = test_case;
      families.erase("args");
      return compare_families(topology::OrderedGrid(grid_sizes(test_case.at("args"))), families);
    });
  }
  for (const Json& test_case : cases(file, "masked_orthogonal")) {
    report.check("masked_orthogonal " + test_case.at("parallel_size").dump() + " " + test_case.at("mask").dump(),
                 test_case, [&] {
                   std::vector<bool> mask;
                   for (const Json& entry : test_case.at("mask"))
                     mask.push_back(entry.is_boolean() ? entry.get<bool>() : entry != 0);
                   return compare(topology::masked_orthogonal_groups(test_case.at("world_size"),
                                                                     test_case.at("parallel_size"), mask),
                                  test_case.at("groups"));
                 });
  }
  for (const Json& test_case : cases(file, "embedding_ranks")) {
    report.check("embedding_ranks " + test_case.at("pp_ranks").dump(), test_case, [&] {
      const topology::Ranks stages = test_case.at("pp_ranks");
      const auto problem = compare_list(topology::embedding_ranks(stages), test_case, "embedding");
      return problem.empty() ? compare_list(topology::position_embedding_ranks(stages), test_case, "position")
                             : problem;
    });
  }
}

// The number of ranks of a variant: from its groups, or for a rejected one the product of its degrees.
int find_world_size(const Json& variant) {
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
  for (const Json& test_case : cases(file, "init_errors")) {
    report.check("init_errors world " + test_case.at("world_size").dump() + " " + test_case.at("kwargs").dump(), [&] {
      Initialisation init;
      apply(test_case.at("kwargs"), init);
      return check_initialisation(test_case.at("world_size"), init, test_case.at("error"),
                                  test_case.value("groups", Json()));
    });
  }
  for (const Json& test_case : cases(file, "init_variants")) {
    report.check("init_variants " + test_case.at("name").get<std::string>(), [&] {
      Initialisation init{.parallel = read_parallel(test_case.at("args")), .options = {}};
      apply(test_case.at("kwargs"), init);
      return check_initialisation(find_world_size(test_case), init, test_case.at("error"),
                                  test_case.value("groups", Json()));
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

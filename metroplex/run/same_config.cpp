#include "run/same_config.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "comm/collectives.h"
#include "config/fields.h"

namespace metroplex::run {
namespace {

constexpr const char* kMayDiffer[] = {
    "run.nproc",        "run.threads_per_rank",     "run.network_interface",    "data.num_workers",
    "train.progress",   "memory.device_memory_gib", "memory.offload_directory", "train.metrics_file",
    "train.trace_file", "train.tensorboard_dir",
};
constexpr size_t kMaxListed = 4;

// Returns one line per key, in table order. Values contain no line breaks.
std::string common_settings(const config::Config& config) {
  config::Config copy = config;
  std::string text;
  for (const config::Field& field : config::fields(copy)) {
    if (std::find(std::begin(kMayDiffer), std::end(kMayDiffer), field.key()) != std::end(kMayDiffer)) continue;
    text += field.key() + " = " + to_yaml(field) + "\n";
  }
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Lists the differences of `rank` from rank 0. A derived value differs with its source key and may be listed first.
std::string list_differences(const std::string& mine, const std::string& of_rank_0, int rank) {
  const std::vector<std::string> here = split_lines(mine), first = split_lines(of_rank_0);
  if (here.size() != first.size())
    return base::concat("rank 0 and rank ", rank, " run different versions of the program");
  std::string text;
  size_t found = 0;
  for (size_t i = 0; i < here.size(); ++i) {
    if (here[i] == first[i] || ++found > kMaxListed) continue;
    const std::string value = here[i].substr(here[i].find(" = ") + 3);
    text += base::concat(text.empty() ? "" : ", ", first[i], " on rank 0 and ", value, " on rank ", rank);
  }
  return found <= kMaxListed ? text : base::concat(text, ", and ", found - kMaxListed, " more");
}

}  // namespace

std::string config_difference(const config::Config& mine, const comm::World& world) {
  const comm::Group& all = world.groups().world;
  const std::string text = common_settings(mine), first = comm::broadcast_string(text, all);
  at::Tensor lowest = at::empty({1}, at::kLong);  // lowest differing rank, negated for a max all-reduce
  lowest[0] = text == first ? -world.size() : -world.rank();
  comm::all_reduce(lowest, all, comm::ReduceOp::max);
  const auto rank = static_cast<int>(-lowest.item<int64_t>());
  if (rank == world.size()) return "";
  const std::string differences = rank == world.rank() ? list_differences(text, first, rank) : "";
  return comm::all_gather_strings(differences, all)[static_cast<size_t>(rank)];
}

}  // namespace metroplex::run

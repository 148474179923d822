#include "comm/launch.h"

#include <charconv>
#include <cstdlib>
#include <vector>

#include "base/error.h"

namespace metroplex::comm {
namespace {

class Variables {
 public:
  Variables(std::string launcher, const Environment& environment)
      : launcher_(std::move(launcher)), environment_(environment) {}

  bool has(const std::string& name) const { return environment_(name).has_value(); }
  std::string text(const std::string& name) {
    const std::optional<std::string> value = environment_(name);
    if (!value || value->empty()) missing_.push_back(name);
    return value.value_or("");
  }
  int number(const std::string& name, int lowest, int highest) {
    const std::string value = text(name);
    return value.empty() ? lowest : parse(name, value, lowest, highest);
  }
  int number_or(const std::string& name, int otherwise, int highest, int lowest = 0) {
    return has(name) ? number(name, lowest, highest) : otherwise;
  }
  void check_complete() const {
    std::string names;
    for (const std::string& name : missing_) names += (names.empty() ? "" : ", ") + name;
    MPX_CHECK(missing_.empty(), "comm", launcher_, " started this process, but ", names,
              missing_.size() == 1 ? " is" : " are",
              " not set; set the missing variables, or use --nproc to start the ranks here");
  }

 private:
  int parse(const std::string& name, const std::string& value, int lowest, int highest) const {
    int number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    MPX_CHECK(error == std::errc() && end == value.data() + value.size() && number >= lowest && number <= highest,
              "comm", name, "=", value, " is not an integer from ", lowest, " to ", highest);
    return number;
  }

  std::string launcher_;
  const Environment& environment_;
  std::vector<std::string> missing_;
};

constexpr int kMaxRanks = 1 << 24;
constexpr int kMaxPort = 65535;
constexpr int kDefaultPort = 29500;

// Returns the first host of a Slurm list: "node[003-005,7],other" -> "node003".
std::string first_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    for (++i; i < list.size() && list[i] != '-' && list[i] != ',' && list[i] != ']'; ++i) host += list[i];
    i = list.find(']', i);
    if (i == std::string::npos) break;
  }
  return host;
}

// Returns the tasks of one node in SLURM_TASKS_PER_NODE, e.g. "4(x2),3".
int tasks_on_node(const std::string& list, int node) {
  size_t i = 0;
  while (i < list.size()) {
    char* end = nullptr;
    const long tasks = std::strtol(list.c_str() + i, &end, 10);
    long repeat = 1;
    if (end[0] == '(' && end[1] == 'x') repeat = std::strtol(end + 2, &end, 10);
    if (node < repeat) return static_cast<int>(tasks);
    node -= static_cast<int>(repeat);
    const size_t comma = list.find(',', static_cast<size_t>(end - list.c_str()));
    if (comma == std::string::npos) break;
    i = comma + 1;
  }
  return 1;
}

// Reads torchrun's six variables, each with `prefix` ("" or "METROPLEX_"). With `alone`, missing local variables
// mean that all ranks run on one machine.
LaunchEnvironment read_variables(Variables& variables, const std::string& prefix, bool alone) {
  LaunchEnvironment launch;
  launch.rank = variables.number(prefix + "RANK", 0, kMaxRanks);
  launch.world_size = variables.number(prefix + "WORLD_SIZE", 1, kMaxRanks);
  launch.local_rank = variables.number_or(prefix + "LOCAL_RANK", alone ? launch.rank : 0, kMaxRanks);
  launch.local_size = variables.number_or(prefix + "LOCAL_WORLD_SIZE", alone ? launch.world_size : 1, kMaxRanks, 1);
  launch.master_addr = variables.text(prefix + "MASTER_ADDR");
  launch.master_port = static_cast<uint16_t>(variables.number(prefix + "MASTER_PORT", 1, kMaxPort));
  return launch;
}

LaunchEnvironment read_metroplex(const Environment& environment) {
  Variables variables("an explicit METROPLEX_RANK", environment);
  LaunchEnvironment launch = read_variables(variables, "METROPLEX_", /*alone=*/true);
  launch.launcher = "metroplex";
  launch.listen_fd = variables.number_or("METROPLEX_LISTEN_FD", -1, kMaxRanks);
  launch.cause_fd = variables.number_or("METROPLEX_CAUSE_FD", -1, kMaxRanks);
  variables.check_complete();
  return launch;
}

LaunchEnvironment read_torchrun(const Environment& environment) {
  Variables variables("torchrun (RANK is set)", environment);
  LaunchEnvironment launch = read_variables(variables, "", /*alone=*/false);
  launch.launcher = "torchrun";
  const std::string agent = environment("TORCHELASTIC_USE_AGENT_STORE").value_or("");
  launch.agent_store = agent == "True" || agent == "true" || agent == "1";
  launch.attempt = variables.number_or("TORCHELASTIC_RESTART_COUNT", 0, kMaxRanks);
  variables.check_complete();
  return launch;
}

LaunchEnvironment read_open_mpi(const Environment& environment) {
  Variables variables("Open MPI (OMPI_COMM_WORLD_RANK is set)", environment);
  LaunchEnvironment launch;
  launch.launcher = "Open MPI";
  launch.rank = variables.number("OMPI_COMM_WORLD_RANK", 0, kMaxRanks);
  launch.world_size = variables.number("OMPI_COMM_WORLD_SIZE", 1, kMaxRanks);
  launch.local_rank = variables.number("OMPI_COMM_WORLD_LOCAL_RANK", 0, kMaxRanks);
  launch.local_size = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMaxRanks);
  // mpirun sets no master address: on one machine it is the loopback, otherwise MASTER_ADDR is required.
  if (variables.has("MASTER_ADDR") || launch.local_size < launch.world_size)
    launch.master_addr = variables.text("MASTER_ADDR");
  launch.master_port = static_cast<uint16_t>(variables.number_or("MASTER_PORT", kDefaultPort, kMaxPort));
  variables.check_complete();
  return launch;
}

LaunchEnvironment read_slurm(const Environment& environment) {
  Variables variables("Slurm (SLURM_PROCID is set)", environment);
  LaunchEnvironment launch;
  launch.launcher = "Slurm";
  launch.rank = variables.number("SLURM_PROCID", 0, kMaxRanks);
  const bool step = variables.has("SLURM_STEP_NUM_TASKS");
  launch.world_size = variables.number(step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", 1, kMaxRanks);
  launch.local_rank = variables.number("SLURM_LOCALID", 0, kMaxRanks);
  const std::string tasks =
      environment("SLURM_STEP_TASKS_PER_NODE").value_or(environment("SLURM_TASKS_PER_NODE").value_or("1"));
  launch.local_size = tasks_on_node(tasks, variables.number_or("SLURM_NODEID", 0, kMaxRanks));
  MPX_CHECK(launch.local_size > 0, "comm", "Slurm's tasks of each node, ", tasks,
            ", include none on this node; start ranks with srun");
  if (variables.has("MASTER_ADDR")) {
    launch.master_addr = variables.text("MASTER_ADDR");
  } else {
    const bool step_list = variables.has("SLURM_STEP_NODELIST");
    launch.master_addr = first_host(variables.text(step_list ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST"));
  }
  // Jobs that share a node must not use the same port.
  const int from_job = 20000 + variables.number_or("SLURM_JOB_ID", kDefaultPort - 20000, 2147483647) % 20000;
  launch.master_port = static_cast<uint16_t>(variables.number_or("MASTER_PORT", from_job, kMaxPort));
  variables.check_complete();
  return launch;
}

// A batch script has the variables of the job's first task; a process started by srun also has a step id. Ids above
// kLastStep are steps that Slurm creates itself: for batch scripts, salloc shells and processes outside the job.
bool is_task_of_srun(const Environment& environment) {
  constexpr int64_t kLastStep = 0xfffffff0;
  if (environment("SLURM_PROCID") != "0") return true;
  for (const char* const name : {"SLURM_STEP_ID", "SLURM_STEPID"}) {
    const std::optional<std::string> step = environment(name);
    if (!step) continue;
    int64_t number = -1;
    std::from_chars(step->data(), step->data() + step->size(), number);
    return number >= 0 && number <= kLastStep;
  }
  return environment("SLURM_STEP_NUM_TASKS").has_value();
}

struct Launcher {
  const char* marker;
  LaunchEnvironment (*read)(const Environment&);
};
constexpr Launcher kLaunchers[] = {{"METROPLEX_RANK", read_metroplex},
                                   {"RANK", read_torchrun},
                                   {"OMPI_COMM_WORLD_RANK", read_open_mpi},
                                   {"SLURM_PROCID", read_slurm}};

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

int slurm_batch_tasks(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    if (!environment(launcher.marker)) continue;
    if (launcher.read != read_slurm || is_task_of_srun(environment)) return 0;
    return Variables("Slurm", environment).number_or("SLURM_NTASKS", 1, kMaxRanks);
  }
  return 0;
}

std::optional<LaunchEnvironment> launch_from_environment(const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    if (!environment(launcher.marker)) continue;
    if (launcher.read == read_slurm && !is_task_of_srun(environment)) return std::nullopt;
    LaunchEnvironment launch = launcher.read(environment);
    launch.secret = environment("METROPLEX_SECRET").value_or("");
    launch.interface = environment("GLOO_SOCKET_IFNAME").value_or("");
    MPX_CHECK(launch.rank < launch.world_size, "comm", launch.launcher, " started this process as rank ", launch.rank,
              " of ", launch.world_size, "; ranks count from 0");
    return launch;
  }
  return std::nullopt;
}

}  // namespace metroplex::comm

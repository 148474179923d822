#include "megatron/launch_ranks.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <sstream>

#include "base/error.h"
#include "megatron/launch_hosts.h"

namespace metroplex::megatron {
namespace {

using LauncherWords = std::vector<std::string>;

enum class Launcher { kNone, kTorchrun, kDeepspeed, kAccelerate, kMpi, kSlurm, kSlurmJob, kHorovod, kJsrun, kMsrun };

struct Stage {
  Launcher launcher = Launcher::kNone;
  std::string name;
  LauncherWords options;
};

// A count from an option. `text` is the option as written.
struct Count {
  bool given = false;
  int64_t value = 0;  // 0: given, but not a positive number
  std::string text;
};

std::string base_name(const std::string& word) { return word.substr(word.rfind('/') + 1); }

bool is_digits(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_any(const std::string& word, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return word == name; });
}

Launcher find_launcher(const std::string& word) {
  const std::string name = base_name(word);
  if (is_any(name, {"torchrun", "torch.distributed.run", "torch.distributed.launch", "colossalai"}) ||
      is_launcher_file(word))
    return Launcher::kTorchrun;
  if (is_any(name, {"deepspeed", "deepspeed.launcher.runner"})) return Launcher::kDeepspeed;
  if (is_any(name, {"accelerate", "accelerate-launch", "accelerate.commands.launch"})) return Launcher::kAccelerate;
  if (name.rfind("mpirun", 0) == 0 || name.rfind("mpiexec", 0) == 0 ||
      is_any(name, {"orterun", "prterun", "prun", "aprun"}))
    return Launcher::kMpi;
  if (is_any(name, {"srun", "flux", "ibrun", "yhrun", "lrun", "ccc_mprun"})) return Launcher::kSlurm;
  if (is_any(name, {"sbatch", "salloc"})) return Launcher::kSlurmJob;
  if (name == "horovodrun") return Launcher::kHorovod;
  if (name == "msrun") return Launcher::kMsrun;
  return name == "jsrun" ? Launcher::kJsrun : Launcher::kNone;
}

// Programs that end the options of the preceding launcher.
bool is_wrapper(const std::string& word) {
  static const std::set<std::string> kWrappers{
      "nice",   "ionice",      "numactl",   "taskset", "env",    "timeout",  "time", "nohup",  "stdbuf",
      "setsid", "chrt",        "apptainer", "docker",  "podman", "enroot",   "sh",   "bash",   "dash",
      "zsh",    "singularity", "shifter",   "conda",   "nsys",   "ncu",      "sudo", "xargs",  "ssh",
      "strace", "gdb",         "perf",      "rocprof", "exec",   "unbuffer", "uv",   "poetry", "pixi"};
  const std::string name = base_name(word);
  return kWrappers.contains(name) || (name.rfind("python", 0) == 0 && name.find_first_of("=,:") == std::string::npos);
}

std::vector<Stage> split_launchers(const LauncherWords& words) {
  std::vector<Stage> stages(1);
  for (const std::string& word : words) {
    const Launcher launcher = find_launcher(word);
    if (launcher != Launcher::kNone || is_wrapper(word)) {
      stages.push_back({launcher, base_name(word), {}});
    } else {
      stages.back().options.push_back(word);
    }
  }
  return stages;
}

// Returns the word after the option, or after its "="; the last one counts.
std::optional<std::string> find_value(const LauncherWords& options, const std::string& name) {
  std::optional<std::string> value;
  for (size_t i = 0; i < options.size(); ++i) {
    if (options[i] == name && i + 1 < options.size()) value = options[i + 1];
    if (options[i].rfind(name + "=", 0) == 0) value = options[i].substr(name.size() + 1);
  }
  return value;
}

// Matches "--name N", "--name=N" and, for names with one dash, "-nN". `_` and `-` are equal in long names. The last
// one counts.
Count find_count(const LauncherWords& options, std::initializer_list<const char*> names) {
  Count found;
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string& word = options[i];
    const size_t equals = word.find('=');
    std::string name = word.substr(0, equals);
    if (name.rfind("--", 0) == 0) std::replace(name.begin(), name.end(), '_', '-');
    for (const std::string wanted : names) {
      std::optional<std::string> value;
      if (name == wanted && equals != std::string::npos) value = word.substr(equals + 1);
      if (name == wanted && equals == std::string::npos) value = i + 1 < options.size() ? options[i + 1] : "";
      const bool is_short = wanted[1] != '-';
      if (!value && is_short && word.rfind(wanted, 0) == 0 && is_digits(word.substr(wanted.size())))
        value = word.substr(wanted.size());
      if (!value) continue;
      const bool alone = equals == std::string::npos && name == wanted;
      found = {true, to_count(*value), word + (alone && !value->empty() && (*value)[0] != '-' ? " " + *value : "")};
    }
  }
  return found;
}

// Returns the value of "NAME=VALUE" among the words of a command (environment variables); the last one counts.
std::optional<std::string> find_variable(const LauncherWords& words, const std::string& name) {
  const auto found = std::find_if(words.rbegin(), words.rend(),
                                  [&](const std::string& word) { return word.rfind(name + "=", 0) == 0; });
  return found == words.rend() ? std::nullopt : std::optional(found->substr(name.size() + 1));
}

int64_t visible_devices(const LauncherWords& words) {
  const std::string list = find_variable(words, "CUDA_VISIBLE_DEVICES").value_or("");
  return list.empty() ? 0 : 1 + std::count(list.begin(), list.end(), ',');
}

// Returns nullopt if the launcher specifies no count.
std::optional<LauncherRanks> multiply(const std::string& launcher, const Count& each, const Count& times) {
  if (!each.given && !times.given) return std::nullopt;
  for (const Count& count : {each, times}) {
    if (count.given && count.value == 0) return LauncherRanks{0, launcher + " " + count.text};
  }
  return LauncherRanks{std::max<int64_t>(1, each.value) * std::max<int64_t>(1, times.value), ""};
}

// Returns one of torchrun's counts, from its option or else from the environment variable.
Count torchrun_count(const Stage& stage, const LauncherWords& words, std::initializer_list<const char*> names,
                     const std::string& variable) {
  const Count option = find_count(stage.options, names);
  const std::optional<std::string> value = find_variable(words, variable);
  if (option.given || !value) return option;
  return {true, to_count(*value), variable + "=" + *value};
}

std::optional<LauncherRanks> count_torchrun(const Stage& stage, const LauncherWords& words) {
  Count each = torchrun_count(stage, words, {"--nproc-per-node"}, "PET_NPROC_PER_NODE");
  const bool all_devices = each.text.ends_with("gpu") || each.text.ends_with("auto");
  if (all_devices) each.value = visible_devices(words);
  return multiply(stage.name, each, torchrun_count(stage, words, {"--nnodes", "--nnode"}, "PET_NNODES"));
}

// Returns the hosts from a host-list option or from a host file that the trial has read; empty if there is neither.
std::vector<HostSlots> find_hosts(const Stage& stage, const LauncherWords& words) {
  const LauncherWords& options = stage.options;
  const bool deepspeed = stage.launcher == Launcher::kDeepspeed;
  for (const char* name : {"--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f", "-H"}) {
    const std::optional<std::string> path = find_value(options, name);
    const std::optional<std::string> text = path ? find_variable(words, "metroplex-file:" + *path) : std::nullopt;
    if (text) return parse_host_file(*text);
  }
  if (deepspeed) return {};
  for (const char* name : {"-H", "--host", "-host", "--hosts"}) {
    if (const auto list = find_value(options, name)) return parse_host_list(*list);
  }
  return {};
}

// Returns slots per host times hosts, or the sum of all slots.
std::optional<LauncherRanks> count_hosts(const Stage& stage, const LauncherWords& words) {
  const std::vector<HostSlots> hosts = find_hosts(stage, words);
  Count each = find_count(stage.options, {"-N", "--npernode", "-npernode", "-ppn"});
  const std::string map = find_value(stage.options, "--map-by").value_or("");
  if (map.rfind("ppr:", 0) == 0 && map.find(":node") != std::string::npos)
    each = {true, to_count(map.substr(4, map.find(':', 4) - 4)), "--map-by " + map};
  const auto number = static_cast<int64_t>(hosts.size());
  if (hosts.empty()) return std::nullopt;
  if (each.given) return multiply(stage.name, each, {true, number, ""});
  const int64_t slots = count_slots(hosts);
  return LauncherRanks{slots, slots > 0 ? "" : stage.name + " (some hosts have no slot count)"};
}

std::optional<LauncherRanks> count_deepspeed(const Stage& stage, const LauncherWords& words) {
  const LauncherWords& options = stage.options;
  const Count nodes = find_count(options, {"--num-nodes"}), each = find_count(options, {"--num-gpus"});
  std::vector<HostSlots> hosts = find_hosts(stage, words);
  const Count file = find_count(options, {"--hostfile", "-H"});
  if (hosts.empty() && file.given && !nodes.given) return LauncherRanks{0, stage.name + " " + file.text};
  for (const auto& [name, include] :
       {std::pair("--include", true), std::pair("-i", true), std::pair("--exclude", false), std::pair("-e", false)}) {
    const std::optional<std::string> filter = find_value(options, name);
    if (!filter) continue;
    const auto selected = select_hosts(hosts, *filter, include);
    if (!selected || count_slots(*selected) == 0)
      return LauncherRanks{0, base::concat(stage.name, " ", name, " ", *filter)};
    return LauncherRanks{count_slots(*selected), ""};
  }
  if (hosts.empty()) {
    const int64_t visible = visible_devices(words);
    if (!nodes.given && !each.given && visible > 0) return LauncherRanks{visible, ""};
    if (!each.given && nodes.given) return LauncherRanks{0, stage.name + " without --num_gpus"};
    return multiply(stage.name, each, nodes);
  }
  if (nodes.value > 0) hosts.resize(std::min(hosts.size(), static_cast<size_t>(nodes.value)));
  if (each.given) return multiply(stage.name, each, {true, static_cast<int64_t>(hosts.size()), ""});
  const int64_t slots = count_slots(hosts);
  return LauncherRanks{slots, slots > 0 ? "" : stage.name + " " + file.text};
}

std::optional<LauncherRanks> count_accelerate(const Stage& stage, const LauncherWords& words) {
  const Count given = find_count(stage.options, {"--num-processes"});
  if (given.given) return multiply(stage.name, given, {});
  for (const char* name : {"--config_file", "--config-file"}) {
    const std::optional<std::string> path = find_value(stage.options, name);
    if (!path) continue;
    const int64_t number = number_in(find_variable(words, "metroplex-file:" + *path).value_or(""), "num_processes");
    return LauncherRanks{number, number > 0 ? "" : base::concat(stage.name, " ", name, " ", *path)};
  }
  return std::nullopt;
}

std::optional<LauncherRanks> count_slurm(const Stage& stage, const LauncherWords& slurm_options) {
  LauncherWords options = slurm_options;
  options.insert(options.end(), stage.options.begin(), stage.options.end());
  // Options of srun override the total of the job.
  Count total = find_count(stage.options, {"-n", "--ntasks"});
  const Count each = find_count(options, {"--ntasks-per-node", "--tasks-per-node"});
  const Count own_nodes = find_count(stage.options, {"-N", "--nodes"});
  if (!total.given && !own_nodes.given) total = find_count(options, {"-n", "--ntasks"});
  if (total.given) return multiply(stage.name, total, {});
  const Count per_gpu = find_count(options, {"--ntasks-per-gpu"});
  if (per_gpu.given) return LauncherRanks{0, stage.name + " " + per_gpu.text};
  return multiply(stage.name, each, find_count(options, {"-N", "--nodes"}));
}

// `words`: the whole command.
std::optional<LauncherRanks> count_stage(const Stage& stage, const LauncherWords& words,
                                         const LauncherWords& slurm_options) {
  const LauncherWords& options = stage.options;
  switch (stage.launcher) {
    case Launcher::kTorchrun:
      return count_torchrun(stage, words);
    case Launcher::kDeepspeed:
      return count_deepspeed(stage, words);
    case Launcher::kAccelerate:
      return count_accelerate(stage, words);
    case Launcher::kMpi: {
      const Count total = find_count(options, {"-np", "-n", "--np", "--n", "-c"});
      return total.given ? multiply(stage.name, total, {}) : count_hosts(stage, words);
    }
    case Launcher::kSlurm:
      return count_slurm(stage, slurm_options);
    case Launcher::kNone:
      // Other launchers accept the options of torchrun (ft_launcher, dlrover-run).
      return find_count(options, {"--nproc-per-node"}).given
                 ? count_torchrun({Launcher::kTorchrun, stage.name, options}, words)
                 : std::nullopt;
    case Launcher::kMsrun:
      return multiply(stage.name, find_count(options, {"--worker-num"}), {});
    case Launcher::kHorovod: {
      const Count total = find_count(options, {"-np", "--num-proc"});
      return total.given ? multiply(stage.name, total, {}) : count_hosts(stage, words);
    }
    case Launcher::kJsrun: {
      const Count total = find_count(options, {"-p", "--np"});
      if (total.given) return multiply(stage.name, total, {});
      return multiply(stage.name, find_count(options, {"-n", "--nrs"}),
                      find_count(options, {"-a", "--tasks-per-rs"}));
    }
    default:
      return std::nullopt;
  }
}

LauncherWords slurm_job_options(const std::vector<Stage>& stages) {
  LauncherWords options;
  for (const Stage& stage : stages) {
    if (stage.launcher == Launcher::kSlurmJob)
      options.insert(options.end(), stage.options.begin(), stage.options.end());
  }
  return options;
}

}  // namespace

bool is_launcher_file(const std::string& path) {
  return path.ends_with("distributed/launch.py") || path.ends_with("distributed/run.py");
}

bool is_launcher_module(const std::string& name) { return find_launcher(name) != Launcher::kNone; }

LauncherWords job_options(const LauncherWords& words) { return slurm_job_options(split_launchers(words)); }

LauncherRanks count_ranks(const LauncherWords& words, const LauncherWords& slurm_options) {
  const std::vector<Stage> stages = split_launchers(words);
  LauncherWords job = slurm_options;
  const LauncherWords own = slurm_job_options(stages);
  job.insert(job.end(), own.begin(), own.end());
  std::string silent;
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
    if (const auto ranks = count_stage(*stage, words, job)) return *ranks;
    const bool starts_ranks = stage->launcher != Launcher::kNone && stage->launcher != Launcher::kSlurmJob;
    // torchrun without options starts one rank.
    if (starts_ranks && silent.empty()) silent = stage->launcher == Launcher::kTorchrun ? "1" : stage->name;
  }
  if (silent == "1") return {1, ""};
  // Megatron reads this variable if no launcher sets it.
  const int64_t world = to_count(find_variable(words, "WORLD_SIZE").value_or(""));
  if (world > 0) return {world, ""};
  return {0, silent};
}

std::string first_array_task(const LauncherWords& options) {
  const std::string tasks = find_value(options, "--array").value_or(find_value(options, "-a").value_or(""));
  return tasks.substr(0, tasks.find_first_not_of("0123456789"));
}

std::string slurm_variables(const LauncherWords& options) {
  // Also accepts the trailing count in "--gres=gpu:a100:8".
  const auto count = [&](std::initializer_list<const char*> names) {
    const Count found = find_count(options, names);
    return found.value > 0 ? found.value : to_count(found.text.substr(found.text.find_last_of(":= ") + 1));
  };
  const int64_t nodes = count({"-N", "--nodes"}), each = count({"--ntasks-per-node", "--tasks-per-node"});
  const int64_t total = count({"-n", "--ntasks"}), gpus = count({"--gpus-per-node"});
  const std::pair<const char*, int64_t> variables[] = {{"SLURM_NNODES", nodes},
                                                       {"SLURM_JOB_NUM_NODES", nodes},
                                                       {"SLURM_NTASKS", total > 0 ? total : nodes * each},
                                                       {"SLURM_NTASKS_PER_NODE", each},
                                                       {"SLURM_CPUS_PER_TASK", count({"-c", "--cpus-per-task"})},
                                                       {"SLURM_GPUS_PER_NODE", gpus},
                                                       {"SLURM_GPUS_ON_NODE", gpus > 0 ? gpus : count({"--gres"})}};
  std::string text;
  for (const auto& [name, value] : variables) {
    if (value > 0) text += base::concat("export ", name, "=", value, "\n");
  }
  const std::string task = first_array_task(options);
  if (!task.empty()) text += "export SLURM_ARRAY_TASK_ID=${SLURM_ARRAY_TASK_ID:-" + task + "}\n";
  return "if [[ -z ${SLURM_JOB_ID-} ]]; then :\n" + text + "fi\n";
}

LauncherWords read_slurm_options(const std::string& script) {
  std::istringstream stream(script);
  LauncherWords options;
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || word != "#SBATCH") continue;
    while (words >> word && word[0] != '#') options.push_back(word);
  }
  return options;
}

}  // namespace metroplex::megatron

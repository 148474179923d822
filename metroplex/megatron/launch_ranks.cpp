#include "megatron/launch_ranks.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <set>
#include <sstream>

#include "base/error.h"

namespace metroplex::megatron {
namespace {

using LauncherWords = std::vector<std::string>;

enum class Launcher { kNone, kTorchrun, kDeepspeed, kAccelerate, kMpi, kSlurm, kSlurmJob, kHorovod, kJsrun, kMsrun };

// One launcher with its own options.
struct Stage {
  Launcher launcher = Launcher::kNone;
  std::string name;
  LauncherWords options;
};

// A count that an option states. `text` is the option as written.
struct Count {
  bool given = false;
  int64_t value = 0;  // 0: given, but not a positive number
  std::string text;
};

std::string base_name(const std::string& word) { return word.substr(word.rfind('/') + 1); }

bool is_digits(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

int64_t to_count(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return is_digits(text) && error == std::errc() && number <= 1'000'000 ? number : 0;
}

bool is_any(const std::string& word, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return word == name; });
}

Launcher launcher_named(const std::string& word) {
  const std::string name = base_name(word);
  if (is_any(name, {"torchrun", "torch.distributed.run", "torch.distributed.launch", "colossalai"}) ||
      is_launcher_file(word))
    return Launcher::kTorchrun;
  if (is_any(name, {"deepspeed", "deepspeed.launcher.runner"})) return Launcher::kDeepspeed;
  if (is_any(name, {"accelerate", "accelerate-launch", "accelerate.commands.launch"})) return Launcher::kAccelerate;
  if (name.rfind("mpirun", 0) == 0 || name.rfind("mpiexec", 0) == 0 ||
      is_any(name, {"orterun", "prterun", "prun", "aprun"}))
    return Launcher::kMpi;
  if (is_any(name, {"srun", "flux"})) return Launcher::kSlurm;
  if (is_any(name, {"sbatch", "salloc"})) return Launcher::kSlurmJob;
  if (name == "horovodrun") return Launcher::kHorovod;
  if (name == "msrun") return Launcher::kMsrun;
  return name == "jsrun" ? Launcher::kJsrun : Launcher::kNone;
}

// Programs that end the options of the launcher before them.
bool is_wrapper(const std::string& word) {
  static const std::set<std::string> kWrappers{
      "nice",   "ionice",      "numactl",   "taskset", "env",    "timeout", "time", "nohup", "stdbuf",
      "setsid", "chrt",        "apptainer", "docker",  "podman", "enroot",  "sh",   "bash",  "dash",
      "zsh",    "singularity", "shifter",   "conda",   "nsys",   "ncu",     "sudo", "xargs", "ssh",
      "strace", "gdb",         "perf",      "rocprof", "exec",   "unbuffer"};
  const std::string name = base_name(word);
  return kWrappers.contains(name) || (name.rfind("python", 0) == 0 && name.find_first_of("=,:") == std::string::npos);
}

std::vector<Stage> split_launchers(const LauncherWords& words) {
  std::vector<Stage> stages(1);
  for (const std::string& word : words) {
    const Launcher launcher = launcher_named(word);
    if (launcher != Launcher::kNone || is_wrapper(word)) {
      stages.push_back({launcher, base_name(word), {}});
    } else {
      stages.back().options.push_back(word);
    }
  }
  return stages;
}

// Finds "--name N", "--name=N" and, for a name of one dash, also "-nN". `_` and `-` are equal in long names. The last
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

// Returns nullopt if the launcher states no count.
std::optional<LauncherRanks> multiply(const std::string& launcher, const Count& each, const Count& times) {
  if (!each.given && !times.given) return std::nullopt;
  for (const Count& count : {each, times}) {
    if (count.given && count.value == 0) return LauncherRanks{0, launcher + " " + count.text};
  }
  return LauncherRanks{std::max<int64_t>(1, each.value) * std::max<int64_t>(1, times.value), ""};
}

std::optional<LauncherRanks> count_of_slurm(const Stage& stage, const LauncherWords& slurm_options) {
  LauncherWords options = slurm_options;
  options.insert(options.end(), stage.options.begin(), stage.options.end());
  // An option of srun itself overrides the total of the job.
  Count total = find_count(stage.options, {"-n", "--ntasks"});
  const Count each = find_count(options, {"--ntasks-per-node", "--tasks-per-node"});
  const Count own_nodes = find_count(stage.options, {"-N", "--nodes"});
  if (!total.given && !own_nodes.given) total = find_count(options, {"-n", "--ntasks"});
  if (total.given) return multiply(stage.name, total, {});
  const Count per_gpu = find_count(options, {"--ntasks-per-gpu"});
  if (per_gpu.given) return LauncherRanks{0, stage.name + " " + per_gpu.text};
  return multiply(stage.name, each, find_count(options, {"-N", "--nodes"}));
}

std::optional<LauncherRanks> count_of(const Stage& stage, const LauncherWords& slurm_options) {
  const LauncherWords& options = stage.options;
  switch (stage.launcher) {
    case Launcher::kTorchrun:
      return multiply(stage.name, find_count(options, {"--nproc-per-node"}), find_count(options, {"--nnodes"}));
    case Launcher::kDeepspeed: {
      const Count nodes = find_count(options, {"--num-nodes"});
      const Count each = find_count(options, {"--num-gpus"});
      const Count hosts = find_count(options, {"--hostfile", "-H"});
      if (hosts.given && !nodes.given) return LauncherRanks{0, stage.name + " " + hosts.text};
      if (!each.given && nodes.given) return LauncherRanks{0, stage.name + " without --num_gpus"};
      return multiply(stage.name, each, nodes);
    }
    case Launcher::kAccelerate:
      return multiply(stage.name, find_count(options, {"--num-processes"}), {});
    case Launcher::kMpi:
      return multiply(stage.name, find_count(options, {"-np", "-n", "--np", "--n", "-c"}), {});
    case Launcher::kSlurm:
      return count_of_slurm(stage, slurm_options);
    case Launcher::kNone:
      // Other launchers with the options of torchrun (ft_launcher, dlrover-run).
      return find_count(options, {"--nproc-per-node"}).given
                 ? count_of({Launcher::kTorchrun, stage.name, options}, {})
                 : std::nullopt;
    case Launcher::kMsrun:
      return multiply(stage.name, find_count(options, {"--worker-num"}), {});
    case Launcher::kHorovod:
      return multiply(stage.name, find_count(options, {"-np", "--num-proc"}), {});
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

}  // namespace

bool is_launcher_file(const std::string& path) {
  return path.ends_with("distributed/launch.py") || path.ends_with("distributed/run.py");
}

LauncherRanks count_ranks(const LauncherWords& words, const LauncherWords& slurm_options) {
  const std::vector<Stage> stages = split_launchers(words);
  LauncherWords job = slurm_options;
  for (const Stage& stage : stages) {
    if (stage.launcher == Launcher::kSlurmJob) job.insert(job.end(), stage.options.begin(), stage.options.end());
  }
  std::string silent;
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
    if (const auto ranks = count_of(*stage, job)) return *ranks;
    const bool starts_ranks = stage->launcher != Launcher::kNone && stage->launcher != Launcher::kSlurmJob;
    // torchrun starts one rank without options.
    if (starts_ranks && silent.empty()) silent = stage->launcher == Launcher::kTorchrun ? "1" : stage->name;
  }
  if (silent.empty()) return {};
  if (silent == "1") return {1, ""};
  return {0, silent};
}

// Slurm sets these in the job of a batch script.
std::string slurm_variables(const LauncherWords& options) {
  // Also the 8 of "--gres=gpu:a100:8".
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

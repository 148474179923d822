#include "run/run_folders.h"

#include <vector>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "files/file_system.h"
#include "hf/directory.h"

namespace metroplex::run {
namespace {

// `path` must be canonical.
bool is_inside(const std::string& path, const std::string& entry) {
  return path == entry || path.starts_with(entry + "/");
}

// Returns `name` without the number suffix of move_aside().
std::string without_number(const std::string& name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  const bool numbered = digits > 1 && digits < name.size() && name[digits - 1] == '.';
  return numbered ? name.substr(0, digits - 1) : name;
}

struct RunPath {
  const char* key;
  std::string path;  // empty: not configured
};
// Outputs of a run other than its checkpoints.
std::vector<RunPath> run_paths(const config::Config& config) {
  return {{"train.tensorboard_dir", config.train.tensorboard_dir},
          {"train.metrics_file", config.train.metrics_file},
          {"train.expert_trace_file", config.train.expert_trace_file},
          {"train.trace_file", config.train.trace_file},
          {"data.data_cache_path", config.data.data_cache_path},
          {"memory.offload_directory", config.memory.offload_directory}};
}

bool is_own_output(const config::Config& config, const std::string& folder, const std::string& name,
                   files::FileSystem& disk) {
  const std::string entry = disk.canonical(files::join_path(folder, name));
  const std::string before = disk.canonical(files::join_path(folder, without_number(name)));
  for (const std::string& path :
       {config.train.metrics_file, config.train.expert_trace_file, config.train.trace_file}) {
    if (!path.empty() && disk.canonical(path) == before) return true;
  }
  for (const auto& [key, path] : run_paths(config)) {
    if (!path.empty() && is_inside(disk.canonical(path), entry)) return true;
  }
  return false;
}

std::string join_first(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 3; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return text + (names.size() > 3 ? ", ..." : "");
}

}  // namespace

bool same_folder(const std::string& a, const std::string& b, files::FileSystem& disk) {
  return !a.empty() && !b.empty() && disk.canonical(a) == disk.canonical(b);
}

bool resumes_in_place(const config::Checkpoint& checkpoint, files::FileSystem& disk) {
  if (checkpoint.load.empty() || checkpoint.save.empty()) return false;
  const std::string load = disk.canonical(checkpoint.load), save = disk.canonical(checkpoint.save);
  return load == save || files::parent_directory(load) == save;
}

static void check_nothing_saved(const config::Config& config, files::FileSystem& disk) {
  const config::Checkpoint& checkpoint = config.checkpoint;
  if (checkpoint.save.empty() || !disk.is_directory(checkpoint.save)) return;
  std::vector<std::string> names;
  for (const std::string& name : disk.list(checkpoint.save)) {
    if (name[0] != '.' && !checkpoint::is_run_config(name) && !is_own_output(config, checkpoint.save, name, disk))
      names.push_back(name);
  }
  MPX_CHECK(names.empty(), "checkpoint", "checkpoint.save = ", checkpoint.save, " is not empty (", join_first(names),
            ") and nothing is loaded from it: the checkpoints of two runs would mix there. Add checkpoint.load = ",
            checkpoint.save, " to resume that run, choose another checkpoint.save, or move that folder away");
}

static void check_export_folder(const config::Config& config, files::FileSystem& disk) {
  const config::Checkpoint& checkpoint = config.checkpoint;
  if (checkpoint.export_hf.empty()) return;
  std::vector<RunPath> others = run_paths(config);
  others.push_back({"checkpoint.save", checkpoint.save});
  for (const auto& [key, path] : others) {
    MPX_CHECK(!same_folder(path, checkpoint.export_hf, disk), "config",
              "checkpoint.export_hf = ", checkpoint.export_hf, " is also ", key,
              ", but must be a separate directory; choose another checkpoint.export_hf");
  }
  MPX_CHECK(!checkpoint::parse_name(files::base_name(disk.canonical(checkpoint.export_hf))), "config",
            "checkpoint.export_hf = ", checkpoint.export_hf, " is named like a checkpoint; choose another name");
  // If a resumed run has no step left, an existing export is kept. check_export_target() decides after loading.
  if (!resumes_in_place(checkpoint, disk) || !disk.exists(checkpoint.export_hf)) check_export_target(config, disk);
}

void check_export_target(const config::Config& config, files::FileSystem& disk) {
  try {
    hf::check_writable(disk, config.model, config.checkpoint.export_hf);
  } catch (const base::Error& error) {
    throw base::Error(error.room(), base::concat("checkpoint.export_hf: ", base::message_of(error)));
  }
}

void check_save_folder(const config::Config& config, files::FileSystem& disk) {
  const config::Checkpoint& checkpoint = config.checkpoint;
  check_export_folder(config, disk);
  // A finetuned run restarts at iteration 0. Its checkpoints would branch off the source run, and retention would
  // remove the source's checkpoints.
  MPX_CHECK(!checkpoint.finetune || !resumes_in_place(checkpoint, disk), "config",
            "checkpoint.finetune starts a new run, but checkpoint.save = ", checkpoint.save,
            " is the folder of checkpoint.load = ", checkpoint.load,
            ": the checkpoints that it starts from would be removed; choose another checkpoint.save");
  // A named checkpoint that does not exist inside checkpoint.save is not resumed.
  const bool there = same_folder(checkpoint.load, checkpoint.save, disk) || disk.is_directory(checkpoint.load);
  if (!resumes_in_place(checkpoint, disk) || !there) check_nothing_saved(config, disk);
}

void check_writable(const std::string& save, files::FileSystem& disk) {
  const std::string problem = disk.make_problem(save);
  MPX_CHECK(problem.empty(), "files", "checkpoint.save = ", save, ": ", problem, "; choose another checkpoint.save");
}

void check_first_start(const config::Config& config, const std::vector<std::string>& others,
                       files::FileSystem& disk) {
  const config::Checkpoint& checkpoint = config.checkpoint;
  std::vector<std::string> foreign;
  for (const std::string& name : others) {
    if (!is_own_output(config, checkpoint.load, name, disk)) foreign.push_back(name);
  }
  MPX_CHECK(foreign.empty(), "checkpoint", "checkpoint.load = ", checkpoint.load,
            " contains no checkpoint, but other files (", join_first(foreign),
            "); name a folder that metroplex saved to, or leave checkpoint.load out to start a new run");
  MPX_CHECK(!checkpoint.finetune, "checkpoint", "there is no checkpoint in checkpoint.load = ", checkpoint.load,
            ", and checkpoint.finetune needs its weights; check the path");
  MPX_CHECK(!checkpoint.exit_on_missing_checkpoint, "checkpoint",
            "there is no checkpoint in checkpoint.load = ", checkpoint.load,
            "; give another folder, or unset checkpoint.exit_on_missing_checkpoint to start from scratch");
  MPX_CHECK(!checkpoint.save.empty(), "checkpoint", "there is no checkpoint in checkpoint.load = ", checkpoint.load,
            ", and without checkpoint.save this is not the first start of a run that resumes there; check the path, "
            "or leave checkpoint.load out to start a new run");
  if (!same_folder(checkpoint.load, checkpoint.save, disk)) check_nothing_saved(config, disk);
}

std::string move_aside(const std::string& path, files::FileSystem& disk) {
  if (path.empty() || disk.file_size(path).value_or(0) == 0) return "";
  const std::string target = disk.canonical(path),
                    own = files::join_path(disk.canonical(files::parent_directory(path)), files::base_name(path));
  if (target != own) return move_aside(target, disk);  // a symbolic link stays; its target is renamed
  int number = 1;
  while (disk.exists(base::concat(path, ".", number))) ++number;
  const std::string other = base::concat(path, ".", number);
  try {
    disk.rename(path, other);
  } catch (const base::Error& error) {
    base::throw_error("files",
                      base::concat("'", path, "' belongs to another run: ", error.what(), "; choose another path"));
  }
  return other;
}

}  // namespace metroplex::run

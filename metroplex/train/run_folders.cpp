#include "train/run_folders.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "files/file_system.h"

namespace metroplex::train {
namespace {

namespace fs = std::filesystem;

fs::path plain(const std::string& path) {
  std::error_code error;
  fs::path out = fs::weakly_canonical(fs::absolute(path), error);
  if (error) out = fs::path(path).lexically_normal();
  return out.has_filename() ? out : out.parent_path();  // without a slash at the end
}

// Whether `path` is `folder`/`name` or lies in it.
bool lies_in(const std::string& path, const fs::path& entry) {
  if (path.empty()) return false;
  const fs::path full = plain(path);
  return std::mismatch(entry.begin(), entry.end(), full.begin(), full.end()).first == entry.end();
}

// `name` without the number that set_aside() put behind it.
std::string without_number(const std::string& name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  const bool numbered = digits > 1 && digits < name.size() && name[digits - 1] == '.';
  return numbered ? name.substr(0, digits - 1) : name;
}

bool own_output(const config::Config& config, const std::string& folder, const std::string& name) {
  const fs::path entry = plain(folder) / name, before = plain(folder) / without_number(name);
  for (const std::string& path : {config.train.metrics_file, config.train.expert_trace_file}) {
    if (!path.empty() && plain(path) == before) return true;
  }
  for (const std::string& path :
       {config.train.tensorboard_dir, config.train.metrics_file, config.train.expert_trace_file,
        config.data.data_cache_path, config.memory.offload_directory}) {
    if (lies_in(path, entry)) return true;
  }
  return false;
}

std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 3; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return text + (names.size() > 3 ? ", ..." : "");
}

}  // namespace

bool same_folder(const std::string& a, const std::string& b) {
  return !a.empty() && !b.empty() && plain(a) == plain(b);
}

bool goes_on_in_place(const config::Checkpoint& c) {
  if (c.load.empty() || c.save.empty()) return false;
  return same_folder(c.load, c.save) || plain(c.load).parent_path() == plain(c.save);
}

void check_save_folder(const config::Config& config, files::FileSystem& disk) {
  const config::Checkpoint& c = config.checkpoint;
  // Its iterations begin at 0 again: what it saves would make a branch of the run it came from, which retention
  // removes.
  MPX_CHECK(!c.finetune || !goes_on_in_place(c), "config",
            "checkpoint.finetune begins a new run, but checkpoint.save = ", c.save,
            " is where checkpoint.load = ", c.load,
            " lies: the checkpoints it starts from would be removed; choose another checkpoint.save");
  if (c.save.empty() || goes_on_in_place(c) || !disk.is_directory(c.save)) return;
  std::vector<std::string> names;
  for (const std::string& name : disk.list(c.save)) {
    if (name[0] != '.' && name != checkpoint::kRunConfig && !own_output(config, c.save, name)) names.push_back(name);
  }
  MPX_CHECK(names.empty(), "checkpoint", "checkpoint.save = ", c.save, " is not empty (", some_of(names),
            ") and nothing is loaded from it: the checkpoints of two runs would mix there. Add checkpoint.load = ",
            c.save, " to go on with that run, choose another checkpoint.save, or move that folder away");
}

void check_writable(const std::string& save) {
  fs::path there = plain(save);
  std::error_code none;
  while (!fs::exists(fs::symlink_status(there, none)) && there.has_relative_path()) there = there.parent_path();
  MPX_CHECK(fs::is_directory(there, none), "files", "checkpoint.save = ", save, ": ", there.string(),
            " is no folder; choose another checkpoint.save");
  MPX_CHECK(::access(there.c_str(), W_OK | X_OK) == 0, "files", "checkpoint.save = ", save, ": cannot write in ",
            there.string(), " (", std::strerror(errno), "); choose another checkpoint.save");
}

void check_fresh_start(const config::Config& config, const std::vector<std::string>& others) {
  const config::Checkpoint& c = config.checkpoint;
  std::vector<std::string> foreign;
  for (const std::string& name : others) {
    if (!own_output(config, c.load, name)) foreign.push_back(name);
  }
  MPX_CHECK(foreign.empty(), "checkpoint", "checkpoint.load = ", c.load, " holds no checkpoint but something else (",
            some_of(foreign), "); name a folder that metroplex saved to, or leave checkpoint.load out to start anew");
  MPX_CHECK(!c.finetune, "checkpoint", "there is no checkpoint in checkpoint.load = ", c.load,
            ", and checkpoint.finetune wants the weights of one; is the path right?");
  MPX_CHECK(!c.exit_on_missing_checkpoint, "checkpoint", "there is no checkpoint in checkpoint.load = ", c.load,
            "; give another folder, or unset checkpoint.exit_on_missing_checkpoint to start from scratch");
  MPX_CHECK(
      !c.save.empty(), "checkpoint", "there is no checkpoint in checkpoint.load = ", c.load,
      ", and without checkpoint.save this is not the first start of a run that goes on there; is the path right? "
      "Leave checkpoint.load out to start anew");
}

std::string set_aside(const std::string& path, files::FileSystem& disk) {
  if (path.empty() || disk.file_size(path).value_or(0) == 0) return "";
  int number = 1;
  while (disk.exists(base::concat(path, ".", number))) ++number;
  const std::string other = base::concat(path, ".", number);
  try {
    disk.rename(path, other);
  } catch (const base::Error& error) {
    base::throw_error(
        "files", base::concat("'", path, "' holds what another run wrote: ", error.what(), "; choose another path"));
  }
  return other;
}

}  // namespace metroplex::train

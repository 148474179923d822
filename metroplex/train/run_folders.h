// Checks of the folders that a run loads from and saves to: a mistyped name must not start a new run, and a new run
// must not mix its checkpoints with those of another.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "files/file_system.h"

namespace metroplex::train {

// Whether two paths name the same folder, which need not exist; an empty path names none.
bool same_folder(const std::string& a, const std::string& b, files::FileSystem& disk);

// Whether checkpoint.load is checkpoint.save, or one of the checkpoints in it.
bool goes_on_in_place(const config::Checkpoint& checkpoint, files::FileSystem& disk);

// Throws base::Error when checkpoint.save holds something and nothing of it is to be loaded, and when a new run
// (checkpoint.finetune) would save over the one it comes from. Hidden names and what this run itself writes there
// (train.tensorboard_dir, ...) do not count. And when checkpoint.export_hf cannot be written, or is another output
// too.
void check_save_folder(const config::Config& config, files::FileSystem& disk);
// Throws base::Error if checkpoint.export_hf cannot be written, or exists.
void check_export_place(const config::Config& config, files::FileSystem& disk);

// Throws base::Error where checkpoint.save, or what of its path is there, is no folder or may not be written in.
void check_writable(const std::string& save, files::FileSystem& disk);

// checkpoint.load has no checkpoint; `others`: what is there instead. Throws base::Error unless this may be the first
// start of a run.
void check_fresh_start(const config::Config& config, const std::vector<std::string>& others, files::FileSystem& disk);

// What a run writes line by line belongs to the run that wrote it. Where `path` is a file that is not empty, it
// becomes <path>.N with the lowest free N from 1 on, which is returned; "": nothing was in the way. Throws
// base::Error.
std::string set_aside(const std::string& path, files::FileSystem& disk);

}  // namespace metroplex::train

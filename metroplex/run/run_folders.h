// Checks the folders that a run loads from and saves to. A mistyped name must not start a new run, and checkpoints of
// two runs must not mix.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "files/file_system.h"

namespace metroplex::run {

// True if both paths name the same folder, which need not exist. An empty path matches nothing.
bool same_folder(const std::string& a, const std::string& b, files::FileSystem& disk);

// True if checkpoint.load is checkpoint.save, or one of the checkpoints in it.
bool resumes_in_place(const config::Checkpoint& checkpoint, files::FileSystem& disk);

// Throws base::Error if checkpoint.save is not empty and the run does not load from it. Hidden names and outputs of
// this run (train.tensorboard_dir, ...) are ignored. Throws if a new run (checkpoint.finetune) would save over its
// source. Throws if checkpoint.export_hf cannot be written or coincides with another output.
void check_save_folder(const config::Config& config, files::FileSystem& disk);
// Throws base::Error if checkpoint.export_hf exists or cannot be written.
void check_export_target(const config::Config& config, files::FileSystem& disk);

// Throws base::Error("files") if checkpoint.save or an existing parent of it is not a writable folder.
void check_writable(const std::string& save, files::FileSystem& disk);

// Handles a checkpoint.load without a checkpoint; `others` are its other entries. Throws base::Error unless this may
// be the first start of a run.
void check_first_start(const config::Config& config, const std::vector<std::string>& others, files::FileSystem& disk);

// Protects line-by-line output files of other runs. A non-empty file at `path` is renamed to <path>.N, with the
// lowest free N from 1. Returns the new name, or "" if nothing was renamed. Throws base::Error("files") if renaming
// fails.
std::string move_aside(const std::string& path, files::FileSystem& disk);

}  // namespace metroplex::run

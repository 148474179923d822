// Saves and loads on the local disk.
#pragma once

#include "files/file_system.h"
#include "train/saving.h"

namespace metroplex::train {

inline SaveOutcome save_state(Assembly& assembly, const Position& position) {
  files::PosixFileSystem disk;
  return save_state(assembly, position, disk);
}

inline LoadOutcome load_state(Assembly& assembly, const std::string& directory) {
  files::PosixFileSystem disk;
  return load_state(assembly, directory, disk);
}

}  // namespace metroplex::train

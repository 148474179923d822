// Saves and loads on the local disk.
#pragma once

#include "files/file_system.h"
#include "run/saving.h"

namespace metroplex::run {

inline SaveOutcome save_state(step::Assembly& assembly, const Position& position) {
  files::PosixFileSystem disk;
  return save_state(assembly, position, disk);
}

inline LoadOutcome load_state(step::Assembly& assembly, const std::string& directory, const Position& expected = {}) {
  files::PosixFileSystem disk;
  return load_state(assembly, directory, disk, expected);
}

}  // namespace metroplex::run

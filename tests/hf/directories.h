// The Hugging Face directories of tests/vectors/hf.
#pragma once

#include <string>

#include "config/load.h"
#include "config/validate.h"
#include "files/file_system.h"
#include "hf/directory.h"

namespace metroplex::test {

inline const std::string kHfCases = METROPLEX_SOURCE_DIR "/tests/vectors/hf/";

// The model of a directory, resolved for one rank.
inline config::Model read_hf_model(const std::string& directory) {
  files::PosixFileSystem disk;
  return config::resolved(config::load("", hf::read_settings(disk, directory)), 1).model;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace metroplex::test

// The Hugging Face directories of tests/vectors/hf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "files/file_system.h"
#include "files/safetensors.h"
#include "hf/directory.h"

namespace metroplex::test {

inline const std::string kHfCases = METROPLEX_SOURCE_DIR "/tests/vectors/hf/";

// The model of a directory, resolved for one rank.
inline config::Model read_hf_model(const std::string& directory) {
  files::PosixFileSystem disk;
  return config::resolved(config::load("", hf::read_settings(disk, directory)), 1).model;
}

struct Tensor {
  files::Dtype dtype;
  std::vector<uint64_t> shape;
  std::vector<std::byte> bytes;
  bool operator==(const Tensor&) const = default;
};
using Tensors = std::map<std::string, Tensor>;

// The tensors of a safetensors file, by name.
inline Tensors read_tensors(const std::string& path) {
  files::PosixFileSystem disk;
  const files::SafetensorsFile file(disk.map(path), path);
  Tensors tensors;
  for (const files::TensorInfo& info : file.tensors())
    tensors[info.name] = {info.dtype, info.shape, {file.data(info), file.data(info) + (info.end - info.begin)}};
  return tensors;
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace metroplex::test

// Contents of a checkpoint directory: the file and key of every tensor shard, with checksums of every shard, every
// file and the manifest. State is keyed by global name and kind, not by the layout that wrote it.
// docs/checkpoint_format.md specifies the format. Plain data, no file access.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/checksum.h"
#include "files/dtype.h"

namespace metroplex::files {

inline constexpr int64_t kManifestVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";

// The elements [begin, end), in row-major order, of a box of a tensor.
struct ManifestPiece {
  std::vector<int64_t> offset, size;
  int64_t begin = 0, end = 0;
  int64_t file = 0;  // index into Manifest::files
  std::string key;   // name in that safetensors file, which contains exactly these elements
  Checksum checksum;
};

struct TensorForm {
  std::string name;  // global: decoder.layers.3.mlp.linear_fc1.weight
  std::string kind;  // weight | main | exp_avg | exp_avg_sq | momentum_buffer | ...
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // of the global tensor, unpadded
};

struct ManifestTensor : TensorForm {
  std::vector<ManifestPiece> pieces;
};

struct ManifestFile {
  std::string name;  // no '/', must not start with '.'
  int64_t bytes = 0;
  Checksum checksum;
};

struct Manifest {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  // Name of the run's previous checkpoint in the same folder; "": none. nullopt in checkpoints of older versions.
  std::optional<std::string> parent;
  std::string config_yaml;   // resolved configuration of the run
  std::string extra = "{}";  // JSON text: trainer state other than tensors
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
};

// Returns the bytes of manifest.json. Throws base::Error if `extra` is not JSON.
std::string write_manifest(const Manifest& manifest);

// Checks everything that needs no other files: checksum, version, all fields and ranges, valid names, unique (name,
// kind) and file keys. `path` is used in messages. Throws base::Error.
Manifest parse_manifest(std::string_view text, const std::string& path);

// Prepends the checksum. `members` is '"a":1,...}', the manifest's object without its opening brace.
std::string seal_manifest(std::string_view members);

// Returns the product of sizes; -1 if one is negative or the product exceeds 2^62.
int64_t element_count(const std::vector<int64_t>& size);

}  // namespace metroplex::files

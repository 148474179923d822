// What a checkpoint directory holds: which rectangle of which tensor lies in which file under which key, with a
// checksum of every piece, of every file and of the manifest itself. State is keyed by global name and kind, never by
// the layout that wrote it; docs/checkpoint_format.md is the exact format. Plain data, no file access.
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

// A box of a tensor, and of the box's elements in row-major order those in [begin, end).
struct ManifestPiece {
  std::vector<int64_t> offset, size;
  int64_t begin = 0, end = 0;
  int64_t file = 0;   // index into Manifest::files
  std::string key;    // name inside that safetensors file; its elements are exactly those of the piece
  Checksum checksum;  // of its bytes
};

struct TensorForm {
  std::string name;  // global: decoder.layers.3.mlp.linear_fc1.weight
  std::string kind;  // weight | main | exp_avg | exp_avg_sq | momentum_buffer | ...
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // of the whole tensor, unpadded
};

struct ManifestTensor : TensorForm {
  std::vector<ManifestPiece> pieces;
};

struct ManifestFile {
  std::string name;  // no '/', does not begin with '.'
  int64_t bytes = 0;
  Checksum checksum;
};

struct Manifest {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  // The name of the previous checkpoint of the run in the same folder; "": none. Absent in those of older programs.
  std::optional<std::string> parent;
  std::string config_yaml;   // the resolved configuration of the run
  std::string extra = "{}";  // JSON text: state of the trainer that is not a tensor
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
};

// The bytes of manifest.json. Throws base::Error when `extra` is not JSON.
std::string write_manifest(const Manifest& manifest);

// Checks everything that can be checked without the other files: the sum, the version, every field and range, names
// that are plain, no (name, kind) and no key of a file twice. `path` is for messages. Throws base::Error.
Manifest parse_manifest(std::string_view text, const std::string& path);

// The text with its sum put in front: `members` is '"a":1,...}', the manifest's object without its opening brace.
std::string seal_manifest(std::string_view members);

// Product of sizes; -1 when one is negative or the product exceeds 2^62.
int64_t element_count(const std::vector<int64_t>& size);

}  // namespace metroplex::files

// Reads a checkpoint into any layout: a box of a tensor is filled from the shards that cover it. Data is used only
// after its checksum has been verified. Files are memory-mapped on first use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/exchange.h"
#include "checkpoint/tensor_source.h"
#include "files/file_system.h"
#include "files/manifest.h"
#include "files/safetensors.h"

namespace metroplex::checkpoint {

// One checkpoint directory. fill() also throws, with the file name, if a shard is damaged or the shards do not cover
// a tensor exactly once.
class Reader final : public TensorSource {
 public:
  // Reads and checks the manifest and the file sizes. Throws base::Error.
  Reader(files::FileSystem& disk, std::string directory);

  const files::Manifest& manifest() const { return manifest_; }

  // Verifies the checksum of a file in manifest().files, and that its contents match the manifest.
  void verify_file(size_t file);
  void verify_cover() const;

 private:
  void read(size_t tensor, const Piece& region, void* data) override;
  std::string file_path(size_t file) const;
  files::Bytes map_file(size_t file) const;
  const files::SafetensorsFile& open_file(size_t file);
  const std::byte* checked_data(size_t tensor, size_t piece);
  const std::byte* piece_data(const files::ManifestTensor& tensor, const files::ManifestPiece& piece);
  void check_cover(size_t tensor) const;

  files::FileSystem& disk_;
  files::Manifest manifest_;
  std::vector<std::unique_ptr<files::SafetensorsFile>> files_;
  std::vector<std::vector<bool>> checked_;  // by tensor: shards with verified checksums
  mutable std::vector<bool> covered_;       // tensors with verified coverage
};

struct Found {
  std::unique_ptr<Reader> reader;     // null if there is no checkpoint
  std::vector<std::string> problems;  // damaged checkpoints and the reasons, for warnings
  std::vector<std::string> others;    // without a checkpoint: the other content of the folder
};

// Collective over `exchange`: all ranks open the same checkpoint and divide the verification of its files. Tries
// `latest` first, then its ancestors, then abandoned branches (directory.h), newest first. Throws base::Error with
// all reasons if there are checkpoints but none is valid.
Found open_newest(files::FileSystem& disk, const std::string& root, Exchange& exchange);

// The same for a given iteration. Throws base::Error if it is missing or damaged.
std::unique_ptr<Reader> open_iteration(files::FileSystem& disk, const std::string& root, int64_t iteration,
                                       Exchange& exchange);

// Opens checkpoint.load at checkpoint.ckpt_step (0: the newest). `path` is a folder of checkpoints or one checkpoint.
// Throws if it is a file.
Found open_path(files::FileSystem& disk, const std::string& path, int64_t iteration, Exchange& exchange);

// Detects checkpoints of other programs for error messages. They are not read.

// Returns "Megatron-LM's torch_dist format" or similar if `directory` is such a checkpoint or a folder of them.
// Checks only file names. Returns "" otherwise, or if there is a manifest of this format.
std::string foreign_format(files::FileSystem& disk, const std::string& directory);
// Throws base::Error with the format and, if possible, a fix.
void refuse_foreign(files::FileSystem& disk, const std::string& path);

}  // namespace metroplex::checkpoint

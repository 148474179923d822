// Reads a checkpoint into any layout: a box of a tensor is filled from the pieces that cover it. Nothing is used
// before its checksum has been verified. Files are mapped when first needed.
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

// One checkpoint directory. fill() also throws where a tensor is not covered exactly once by its pieces, or a piece
// is damaged, naming the file.
class Reader final : public TensorSource {
 public:
  // Reads and checks the manifest and the sizes of the files. Throws base::Error.
  Reader(files::FileSystem& disk, std::string directory);

  const files::Manifest& manifest() const { return manifest_; }

  // Verifies the checksum of a whole file (of manifest().files), and that its contents are those in the manifest.
  void verify_file(size_t file);
  // Checks that the pieces of every tensor cover it exactly once.
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
  std::vector<std::vector<bool>> checked_;  // pieces whose checksum was verified, by tensor
  mutable std::vector<bool> covered_;       // tensors whose coverage was checked
};

struct Found {
  std::unique_ptr<Reader> reader;     // null when there is no checkpoint at all
  std::vector<std::string> problems;  // damaged ones that were rejected, and why: each deserves a warning
  std::vector<std::string> others;    // without a checkpoint: what the folder holds instead
};

// Collective over `exchange`: all ranks open the same one, and verify its files between them. `latest` is tried
// first, then its ancestors, then abandoned branches (directory.h), from the newest to the oldest. Throws base::Error
// with all reasons when there are checkpoints and none is sound.
Found open_newest(files::FileSystem& disk, const std::string& root, Exchange& exchange);

// The same for a given iteration. Throws base::Error when it is missing or damaged.
std::unique_ptr<Reader> open_iteration(files::FileSystem& disk, const std::string& root, int64_t iteration,
                                       Exchange& exchange);

// Opens what checkpoint.load and checkpoint.ckpt_step (0: the newest) say: `path` is a folder of checkpoints or a
// checkpoint. Throws when it is a file.
Found open_path(files::FileSystem& disk, const std::string& path, int64_t iteration, Exchange& exchange);

// Recognizes checkpoints of other programs where one of ours was expected, for the error message. They are not read.

// "Megatron-LM's torch_dist format" or the like if `directory` is such a checkpoint or a folder of them, judged by
// the file names in it only; "" if not, or if it has a manifest of ours.
std::string foreign_format(files::FileSystem& disk, const std::string& directory);
// Throws base::Error that names the format and a fix if there is one.
void refuse_foreign(files::FileSystem& disk, const std::string& path);

}  // namespace metroplex::checkpoint

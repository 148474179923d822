// Reading a checkpoint into any layout: a rectangle of a tensor is filled from whatever pieces cover it. Nothing is
// used before its checksum has been compared. Files are mapped when first needed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/exchange.h"
#include "files/file_system.h"
#include "files/manifest.h"
#include "files/safetensors.h"

namespace metroplex::checkpoint {

// The elements [begin, end) of a box of a tensor, and where they go.
struct Target {
  std::string name, kind;
  std::vector<int64_t> global_shape, offset, size;
  files::Dtype dtype = files::Dtype::kF32;
  void* data = nullptr;         // contiguous, host memory
  int64_t begin = 0, end = -1;  // -1: to the end of the box
};

// One checkpoint directory. Not for use by several threads at once; each rank has its own.
class Reader {
 public:
  // Reads and checks the manifest and the sizes of the files. Throws base::Error.
  Reader(files::FileSystem& disk, std::string directory);

  const std::string& directory() const { return directory_; }
  const files::Manifest& manifest() const { return manifest_; }
  // nullptr when the checkpoint has no such tensor.
  const files::ManifestTensor* find(const std::string& name, const std::string& kind) const;

  // For a tensor that is left on purpose, as fill() does for one that it reads. No such tensor: nothing happens.
  void mark_read(const std::string& name, const std::string& kind);
  // Collective: every tensor that no rank has taken, as messages call it.
  std::vector<std::string> unread(Exchange& exchange) const;

  // Throws base::Error naming the tensor when it is missing, has another shape or dtype, is not covered exactly once
  // by its pieces, or when a piece is damaged (naming the file); target.data is then partly written.
  void fill(const Target& target);

  // Compares the checksum of a whole file (of manifest().files), and checks that it holds what the manifest says.
  void verify_file(size_t file);
  // Checks that the pieces of every tensor cover it exactly once.
  void verify_cover() const;

 private:
  std::string file_path(size_t file) const;
  files::Bytes map_file(size_t file) const;
  const files::SafetensorsFile& open_file(size_t file);
  const std::byte* checked_data(size_t tensor, size_t piece);
  const std::byte* piece_data(const files::ManifestTensor& tensor, const files::ManifestPiece& piece);
  void check_cover(size_t tensor) const;

  files::FileSystem& disk_;
  std::string directory_;
  files::Manifest manifest_;
  std::map<std::pair<std::string, std::string>, size_t> index_;
  std::vector<std::unique_ptr<files::SafetensorsFile>> files_;
  std::vector<bool> read_;                  // tensors that somebody asked for
  std::vector<std::vector<bool>> checked_;  // pieces whose sum was compared, by tensor
  mutable std::vector<bool> covered_;       // tensors whose cover was checked
};

struct Found {
  std::unique_ptr<Reader> reader;     // null when there is no checkpoint at all
  std::vector<std::string> problems;  // damaged ones that were passed over, and why: worth a warning each
  std::vector<std::string> others;    // where there is none: what the folder holds instead
};

// Collective over `exchange`: all ranks open the same one. The files are shared out among the ranks to be verified.
// `latest` is tried first, then its past, then branches that were left (history.h), from the newest to the oldest.
// Throws base::Error with all reasons when there are checkpoints and none is sound.
Found open_newest(files::FileSystem& disk, const std::string& root, Exchange& exchange);

// The same for one iteration, chosen by the user: throws base::Error when it is missing or damaged.
std::unique_ptr<Reader> open_iteration(files::FileSystem& disk, const std::string& root, int64_t iteration,
                                       Exchange& exchange);

// What checkpoint.load and checkpoint.ckpt_step (0: the newest) mean: `path` is a folder of checkpoints or one of
// them. Throws when it is a file.
Found open_path(files::FileSystem& disk, const std::string& path, int64_t iteration, Exchange& exchange);

}  // namespace metroplex::checkpoint

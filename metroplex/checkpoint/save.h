// Saving a checkpoint from any number of ranks. Each writes its own pieces into one safetensors file in a temporary
// directory and syncs it; rank 0 then writes the manifest, renames the directory, syncs, and finally points `latest`
// to it. `latest` names a complete checkpoint at all times, and any failure leaves the old one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/exchange.h"
#include "files/dtype.h"
#include "files/file_system.h"

namespace metroplex::checkpoint {

// Receives the bytes of a piece in order, in any number of parts.
using Sink = std::function<void(const void* data, size_t bytes)>;

// What one rank holds of a tensor. Of replicas, one rank passes the piece: the pieces of all ranks together must
// cover each (name, kind) exactly once.
struct LocalPiece {
  std::string name, kind;  // as in files/manifest.h
  std::vector<int64_t> global_shape, offset, size;
  files::Dtype dtype = files::Dtype::kF32;
  const void* data = nullptr;   // contiguous, host memory; the elements [begin, end) of the box
  int64_t begin = 0, end = -1;  // -1: to the end of the box
  // Instead of `data`: called once, when the piece is written, so that not all pieces have to be in host memory at
  // once.
  std::function<void(const Sink&)> produce = nullptr;
};

// A file beside those of the tensors; rank 0 writes it.
struct SideFile {
  std::string name, text;
};

struct RunState {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  std::string config_yaml = "";
  std::string extra = "{}";  // JSON
  // The name of the checkpoint in this folder that the run resumed from; "": none; nullopt: unknown.
  std::optional<std::string> parent = std::nullopt;
  std::vector<SideFile> side_files = {};
};

struct SaveResult {
  bool ok = false;
  std::string error;      // when not ok: the first failing rank and its reason
  std::string directory;  // when ok: where it is
  int64_t bytes = 0;      // when ok: of all its files except the manifest
  std::string note;       // when ok: something that could not be cleaned up; mostly ""
};

// Collective over `exchange`; every rank gets the same result. `state` is read on rank 0 only. A failure (full disk,
// I/O error, pieces that do not fit together, another run saving here) is a result, not an exception; exceptions of
// `exchange` pass through. An exception of `pieces` or of a piece's `produce` (out of memory, say) is a failed save
// too.
SaveResult save(files::FileSystem& disk, const std::string& root, const RunState& state,
                const std::function<std::vector<LocalPiece>()>& pieces, Exchange& exchange);

}  // namespace metroplex::checkpoint

// Saves a checkpoint from any number of ranks. Each rank writes its shards to one safetensors file in a temporary
// directory and syncs it. Rank 0 then writes the manifest, renames the directory, syncs, and updates `latest`.
// `latest` always names a complete checkpoint; any failure leaves the previous one.
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

// Receives the bytes of a shard in order, in any number of calls.
using Sink = std::function<void(const void* data, size_t bytes)>;

// A rank's shard of a tensor. Only one replica passes it: the shards of all ranks together must cover each (name,
// kind) exactly once.
struct LocalPiece {
  std::string name, kind;  // see files/manifest.h
  std::vector<int64_t> global_shape, offset, size;
  files::Dtype dtype = files::Dtype::kF32;
  const void* data = nullptr;   // contiguous host memory: the elements [begin, end) of the box
  int64_t begin = 0, end = -1;  // -1: to the end of the box
  // Replaces `data`: called once when the shard is written, so that not all shards must be in host memory at once.
  std::function<void(const Sink&)> produce = nullptr;
};

// An additional file, written by rank 0.
struct SideFile {
  std::string name, text;
};

struct RunState {
  int64_t iteration = 0;
  int64_t consumed_samples = 0;
  std::string config_yaml = "";
  std::string extra = "{}";  // JSON
  // Name of the checkpoint in this folder from which the run resumed; "": none; nullopt: unknown.
  std::optional<std::string> parent = std::nullopt;
  std::vector<SideFile> side_files = {};
};

struct SaveResult {
  bool ok = false;
  std::string error;      // if not ok: the first failed rank and its reason
  std::string directory;  // if ok: the path
  int64_t bytes = 0;      // if ok: total size of all files except the manifest
  std::string note;       // if ok: a cleanup that failed; usually ""
};

// Collective over `exchange`; every rank gets the same result. `state` is used on rank 0 only. Failures are results,
// not exceptions: full disk, I/O error, inconsistent shards, another run saving here. An exception of `pieces` or
// `produce` (such as out of memory) is a failed save too. Exceptions of `exchange` pass through.
SaveResult save(files::FileSystem& disk, const std::string& root, const RunState& state,
                const std::function<std::vector<LocalPiece>()>& pieces, Exchange& exchange);

}  // namespace metroplex::checkpoint

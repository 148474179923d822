#include "checkpoint/save.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "checkpoint/pieces.h"
#include "files/json_text.h"
#include "files/safetensors.h"

namespace metroplex::checkpoint {
namespace {

using files::FileSystem;
using files::join_path;
using files::Manifest;
using files::ManifestPiece;
using files::ManifestTensor;

const std::string kOk = "ok\n";

// Returns "ok\n" + the result of `work`, or the first line of its exception. Later lines may be a stack trace.
template <class Work>
std::string make_outcome(const Work& work) {
  try {
    return kOk + work();
  } catch (const std::exception& error) {
    const std::string text = base::message_of(error);
    return text.substr(0, text.find('\n'));
  }
}

bool is_ok(const std::string& outcome) { return outcome.starts_with(kOk); }

// One rank's file and its manifest. Holds references to the `LocalPiece`s.
class Shard {
 public:
  Shard(const std::vector<LocalPiece>& pieces, int rank) {
    std::string digits = std::to_string(rank);
    if (digits.size() < 5) digits.insert(0, 5 - digits.size(), '0');
    name_ = "rank_" + digits + ".safetensors";
    for (const LocalPiece& piece : pieces) add(piece);
    files::order_tensors(infos_);
  }

  Manifest write(FileSystem& disk, const std::string& directory) {
    if (infos_.empty()) return {};
    files::SafetensorsWriter writer(disk, join_path(directory, name_), infos_, {{"format", "pt"}});
    for (const files::TensorInfo& info : infos_) {
      const Source& source = sources_.at(info.name);
      files::ChecksumStream sum;
      uint64_t bytes = 0;
      const Sink sink = [&](const void* data, size_t size) {
        bytes += size;
        sum.add(data, size);
        writer.write(data, size);
      };
      if (source.local->produce) {
        source.local->produce(sink);
      } else {
        sink(source.local->data, info.end - info.begin);
      }
      MPX_ASSERT(bytes == info.end - info.begin, "'", info.name, "' provided ", bytes, " bytes, not ",
                 info.end - info.begin);
      manifest_.tensors[source.tensor].pieces[source.piece].checksum = sum.sum();
    }
    const files::WrittenFile written = writer.finish();
    manifest_.files = {{name_, static_cast<int64_t>(written.bytes), written.checksum}};
    return manifest_;
  }

 private:
  struct Source {
    size_t tensor, piece;
    const LocalPiece* local;
  };

  void add(const LocalPiece& local) {
    const Piece region = region_of(local);
    if (region.count() == 0 && files::element_count(local.global_shape) != 0) return;
    const auto [it, is_new] = tensors_.try_emplace({local.name, local.kind}, manifest_.tensors.size());
    if (is_new) manifest_.tensors.push_back({{local.name, local.kind, local.dtype, local.global_shape}, {}});
    ManifestTensor& tensor = manifest_.tensors[it->second];
    MPX_ASSERT(tensor.shape == local.global_shape && tensor.dtype == local.dtype, label(local.name, local.kind),
               " is given with two shapes or dtypes");
    std::string key = local.kind + "/" + local.name;
    if (!tensor.pieces.empty()) key += "#" + std::to_string(tensor.pieces.size());
    std::vector<uint64_t> shape(region.size.begin(), region.size.end());
    if (region.count() != files::element_count(region.size)) shape = {static_cast<uint64_t>(region.count())};
    infos_.push_back({key, local.dtype, std::move(shape), 0, 0});
    sources_[key] = {it->second, tensor.pieces.size(), &local};
    tensor.pieces.push_back({region.offset, region.size, region.begin, region.end, 0, key, {}});
  }

  std::string name_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, size_t> tensors_;
  std::vector<files::TensorInfo> infos_;
  std::map<std::string, Source> sources_;
};

void merge(Manifest& all, Manifest part, int rank, std::map<std::pair<std::string, std::string>, size_t>& index) {
  const auto first_file = static_cast<int64_t>(all.files.size());
  for (auto& file : part.files) all.files.push_back(std::move(file));
  for (ManifestTensor& tensor : part.tensors) {
    for (ManifestPiece& piece : tensor.pieces) piece.file += first_file;
    const auto [it, is_new] = index.try_emplace({tensor.name, tensor.kind}, all.tensors.size());
    if (is_new) {
      all.tensors.push_back(std::move(tensor));
      continue;
    }
    ManifestTensor& known = all.tensors[it->second];
    MPX_CHECK(known.shape == tensor.shape && known.dtype == tensor.dtype, "checkpoint",
              label(tensor.name, tensor.kind), ": rank ", rank, " has it as ", files::dtype_name(tensor.dtype),
              describe_shape(tensor.shape), ", but a lower rank as ", files::dtype_name(known.dtype),
              describe_shape(known.shape));
    std::move(tensor.pieces.begin(), tensor.pieces.end(), std::back_inserter(known.pieces));
  }
}

Manifest combine(const RunState& state, const std::vector<std::string>& outcomes) {
  Manifest all;
  all.iteration = state.iteration;
  all.consumed_samples = state.consumed_samples;
  all.parent = state.parent;
  all.config_yaml = state.config_yaml;
  all.extra = state.extra;
  std::map<std::pair<std::string, std::string>, size_t> index;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const std::string text = outcomes[rank].substr(kOk.size());
    merge(all, files::parse_manifest(text, base::concat("pieces of rank ", rank)), static_cast<int>(rank), index);
  }
  std::sort(all.tensors.begin(), all.tensors.end(), [](const ManifestTensor& a, const ManifestTensor& b) {
    return std::tie(a.name, a.kind) < std::tie(b.name, b.kind);
  });
  for (const ManifestTensor& tensor : all.tensors) {
    const std::string problem = cover_problem(tensor.shape, manifest_pieces(tensor));
    MPX_CHECK(problem.empty(), "checkpoint", label(tensor.name, tensor.kind), " cannot be saved: ", problem);
  }
  return all;
}

// Rank 0's part of a save. Holds the lock from begin() to commit() or abort().
class Coordinator {
 public:
  Coordinator(FileSystem& disk, const std::string& root, int64_t iteration) : disk_(disk), root_(root) {
    name_.iteration = iteration;
  }

  std::string begin() {
    disk_.make_directories(root_);
    lock_ = disk_.try_lock(join_path(root_, kLock));
    MPX_CHECK(lock_ != nullptr, "checkpoint", "another run is currently saving to '", root_,
              "'; give each run its own checkpoint.save");
    sweep(disk_, root_);
    while (disk_.exists(join_path(root_, to_string(name_)))) ++name_.attempt;
    temporary_ = join_path(root_, kTemporaryPrefix + to_string(name_));
    disk_.make_directory(temporary_);
    return temporary_;
  }

  SaveResult commit(const RunState& state, const std::vector<std::string>& outcomes) {
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      MPX_CHECK(is_ok(outcomes[rank]), "checkpoint", "rank ", rank, ": ", outcomes[rank]);
    }
    Manifest manifest = combine(state, outcomes);
    for (const SideFile& file : state.side_files) manifest.files.push_back(write_beside(file));
    SaveResult result;
    for (const auto& file : manifest.files) result.bytes += file.bytes;
    disk_.replace_file(join_path(temporary_, files::kManifestName), files::write_manifest(manifest));
    result.directory = join_path(root_, to_string(name_));
    disk_.rename(temporary_, result.directory);
    temporary_.clear();  // complete from now on, so abort() must not remove it
    disk_.sync_directory(root_);
    write_latest(disk_, root_, name_);
    result.ok = true;
    result.note = remove_older_attempts();
    return result;
  }

  void abort() {
    try {
      if (!temporary_.empty() && disk_.exists(temporary_)) disk_.remove_tree(temporary_);
    } catch (const base::Error&) {  // the next save removes it
    }
  }

 private:
  files::ManifestFile write_beside(const SideFile& file) {
    const auto to = disk_.create(join_path(temporary_, file.name));
    if (!file.text.empty()) to->write(file.text.data(), file.text.size());
    to->sync();
    to->close();
    return {file.name, static_cast<int64_t>(file.text.size()), files::checksum(file.text.data(), file.text.size())};
  }

  std::string remove_older_attempts() {
    try {
      for (const CheckpointName& other : list_checkpoints(disk_, root_)) {
        if (other.iteration == name_.iteration && other.attempt < name_.attempt)
          remove_checkpoint(disk_, root_, other);
      }
    } catch (const base::Error& error) { return error.what(); }
    return "";
  }

  FileSystem& disk_;
  std::string root_;
  CheckpointName name_;
  std::string temporary_;
  std::unique_ptr<files::FileLock> lock_;
};

std::string encode(const SaveResult& result) {
  return nlohmann::json{{"ok", result.ok},
                        {"error", result.error},
                        {"directory", result.directory},
                        {"bytes", result.bytes},
                        {"note", result.note}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

SaveResult decode(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {json.at("ok"), json.at("error"), json.at("directory"), json.at("bytes"), json.at("note")};
}

}  // namespace

SaveResult save(FileSystem& disk, const std::string& root, const RunState& state,
                const std::function<std::vector<LocalPiece>()>& pieces, Exchange& exchange) {
  std::optional<Coordinator> coordinator;
  if (exchange.rank() == 0) coordinator.emplace(disk, root, state.iteration);
  const std::string begun = exchange.broadcast(coordinator ? make_outcome([&] { return coordinator->begin(); }) : "");
  if (!is_ok(begun)) {
    if (coordinator) coordinator->abort();
    return {false, begun, "", 0, ""};
  }
  const std::string written = make_outcome([&] {
    const std::vector<LocalPiece> mine = pieces();
    return files::write_manifest(Shard(mine, exchange.rank()).write(disk, begun.substr(kOk.size())));
  });
  const std::vector<std::string> outcomes = exchange.gather(written);
  SaveResult result;
  if (coordinator) {
    const std::string failure = make_outcome([&] {
      result = coordinator->commit(state, outcomes);
      return "";
    });
    if (!is_ok(failure)) {
      result = {};
      result.error = failure;
      coordinator->abort();
    }
  }
  return decode(exchange.broadcast(coordinator ? encode(result) : ""));
}

}  // namespace metroplex::checkpoint

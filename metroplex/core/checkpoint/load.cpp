#include "checkpoint/load.h"

#include <algorithm>
#include <exception>
#include <functional>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "checkpoint/pieces.h"
#include "files/json_text.h"

namespace metroplex::checkpoint {
using files::FileSystem;
using files::join_path;
using files::ManifestPiece;
using files::ManifestTensor;
using files::printable;

Reader::Reader(FileSystem& disk, std::string directory) : TensorSource(std::move(directory)), disk_(disk) {
  const std::string path = join_path(this->directory(), files::kManifestName);
  manifest_ = files::parse_manifest(disk_.map(path).text(), path);
  const auto name = parse_name(files::base_name(disk_.canonical(this->directory())));
  MPX_CHECK(!name || name->iteration == manifest_.iteration, "checkpoint", "'", this->directory(),
            "' has the name of iteration ", name ? name->iteration : 0, ", but its manifest has iteration ",
            manifest_.iteration, "; restore the original name of the folder");
  files_.resize(manifest_.files.size());
  covered_.resize(manifest_.tensors.size());
  for (const ManifestTensor& tensor : manifest_.tensors) {
    add(tensor);
    checked_.emplace_back(tensor.pieces.size());
  }
}

std::string Reader::file_path(size_t file) const { return join_path(directory(), manifest_.files[file].name); }

files::Bytes Reader::map_file(size_t file) const {
  const files::Bytes bytes = disk_.map(file_path(file));
  const int64_t expected = manifest_.files[file].bytes;
  MPX_CHECK(static_cast<int64_t>(bytes.size) == expected, "checkpoint", "'", file_path(file), "' is damaged: it has ",
            bytes.size, " bytes, but its manifest lists ", expected);
  return bytes;
}

const files::SafetensorsFile& Reader::open_file(size_t file) {
  if (files_[file] == nullptr) {
    files_[file] = std::make_unique<files::SafetensorsFile>(map_file(file), file_path(file));
  }
  return *files_[file];
}

const std::byte* Reader::piece_data(const ManifestTensor& tensor, const ManifestPiece& piece) {
  const files::SafetensorsFile& file = open_file(static_cast<size_t>(piece.file));
  const files::TensorInfo* info = file.find(piece.key);
  MPX_CHECK(info != nullptr, "checkpoint", "'", file.path(), "' has no '", printable(piece.key),
            "', which its manifest lists");
  const auto bytes =
      static_cast<uint64_t>(piece.end - piece.begin) * static_cast<uint64_t>(files::dtype_bits(tensor.dtype) / 8);
  MPX_CHECK(info->dtype == tensor.dtype && info->end - info->begin == bytes, "checkpoint", "'", file.path(),
            "' contains '", printable(piece.key), "' as ", info->end - info->begin, " bytes of ",
            files::dtype_name(info->dtype), ", but its manifest lists ", bytes, " bytes of ",
            files::dtype_name(tensor.dtype));
  return file.data(*info);
}

const std::byte* Reader::checked_data(size_t tensor, size_t piece) {
  const ManifestPiece& entry = manifest_.tensors[tensor].pieces[piece];
  const std::byte* const data = piece_data(manifest_.tensors[tensor], entry);
  if (!checked_[tensor][piece]) {
    const auto element_bytes = static_cast<size_t>(files::dtype_bits(manifest_.tensors[tensor].dtype) / 8);
    MPX_CHECK(files::checksum(data, static_cast<size_t>(entry.end - entry.begin) * element_bytes) == entry.checksum,
              "checkpoint", "'", files_[static_cast<size_t>(entry.file)]->path(), "' is damaged: the checksum of '",
              printable(entry.key), "' does not match the manifest");
    checked_[tensor][piece] = true;
  }
  return data;
}

void Reader::check_cover(size_t tensor) const {
  if (covered_[tensor]) return;
  const ManifestTensor& entry = manifest_.tensors[tensor];
  const std::string problem = cover_problem(entry.shape, manifest_pieces(entry));
  MPX_CHECK(problem.empty(), "checkpoint", "'", directory(), "', ", label(entry.name, entry.kind), ": ", problem);
  covered_[tensor] = true;
}

void Reader::read(size_t tensor, const Piece& region, void* data) {
  check_cover(tensor);
  const ManifestTensor& entry = manifest_.tensors[tensor];
  const int64_t element_bytes = files::dtype_bits(entry.dtype) / 8;
  const std::vector<Piece> sources = manifest_pieces(entry);
  int64_t filled = 0;
  for (size_t i = 0; i < sources.size() && filled < region.count(); ++i) {
    if (!boxes_meet(sources[i], region)) continue;
    filled += copy_overlap(sources[i], checked_data(tensor, i), region, data, element_bytes);
  }
  MPX_ASSERT(filled == region.count(), "'", directory(), "', ", label(entry.name, entry.kind), ": ", filled, " of ",
             region.count(), " elements were found");
}

void Reader::verify_file(size_t file) {
  const files::Bytes bytes = map_file(file);
  const files::Checksum found = files::checksum(bytes.data, bytes.size), expected = manifest_.files[file].checksum;
  MPX_CHECK(found == expected, "checkpoint", "'", file_path(file), "' is damaged: its checksum is ",
            files::to_hex(found), ", but its manifest lists ", files::to_hex(expected));
  for (size_t t = 0; t < manifest_.tensors.size(); ++t) {
    for (size_t p = 0; p < manifest_.tensors[t].pieces.size(); ++p) {
      if (manifest_.tensors[t].pieces[p].file == static_cast<int64_t>(file)) checked_data(t, p);
    }
  }
}

void Reader::verify_cover() const {
  for (size_t tensor = 0; tensor < manifest_.tensors.size(); ++tensor) check_cover(tensor);
}

namespace {

// Opens and verifies one checkpoint on all ranks together. `problem` is equal on all ranks; the reader is null if it
// is set.
std::unique_ptr<Reader> open_together(FileSystem& disk, const std::string& directory, Exchange& exchange,
                                      std::string& problem) {
  std::unique_ptr<Reader> reader;
  std::string mine;
  try {
    reader = std::make_unique<Reader>(disk, directory);
    const auto step = static_cast<size_t>(exchange.size());
    for (auto file = static_cast<size_t>(exchange.rank()); file < reader->manifest().files.size(); file += step) {
      reader->verify_file(file);
    }
    if (exchange.rank() == 0) reader->verify_cover();
  } catch (const std::exception& error) { mine = base::message_of(error); }
  const std::vector<std::string> all = exchange.gather(mine);
  std::string first;
  for (const std::string& text : all) {
    if (first.empty()) first = text;
  }
  problem = exchange.broadcast(first);
  if (!problem.empty()) reader.reset();
  return reader;
}

// Runs `work` on rank 0. Every rank gets its lines, or throws the error of rank 0.
std::vector<std::string> lines_of_rank_0(Exchange& exchange, const std::function<std::vector<std::string>()>& work) {
  std::string text = "+";
  if (exchange.rank() == 0) {
    try {
      for (const std::string& line : work()) text += line + "\n";
    } catch (const std::exception& error) { text = "-" + base::message_of(error); }
  }
  text = exchange.broadcast(text);
  MPX_CHECK(text[0] == '+', "checkpoint", text.substr(1));
  std::vector<std::string> lines;
  for (size_t at = 1; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Returns the first candidate, and the problem of `latest` as a line that starts with '!'.
std::vector<std::string> first_candidates(FileSystem& disk, const std::string& root) {
  std::vector<std::string> lines;
  const Latest latest = read_latest(disk, root);
  if (!latest.problem.empty()) lines.push_back("!" + latest.problem);
  if (!latest.name) return lines;
  if (disk.is_directory(join_path(root, to_string(*latest.name)))) return {to_string(*latest.name)};
  return {"!'" + join_path(root, kLatest) + "' names " + to_string(*latest.name) + ", which does not exist"};
}

// Returns the candidates after the first: its ancestors, then abandoned branches. If the checkpoint is missing, all
// lower iterations count as ancestors.
std::vector<std::string> later_candidates(FileSystem& disk, const std::string& root) {
  const std::vector<CheckpointName> names = list_checkpoints(disk, root);
  if (names.empty()) return {};
  const Latest latest = read_latest(disk, root);
  History history;
  if (latest.name) {
    history = read_history(disk, root, names, *latest.name);
    history.past.erase(history.past.begin());
    // An abandoned branch with lower iterations comes before one with higher iterations.
    std::stable_partition(history.left.begin(), history.left.end(),
                          [&](const CheckpointName& name) { return name.iteration <= latest.name->iteration; });
  } else {
    history = read_history(disk, root, names, names.back());
  }
  std::vector<std::string> lines;
  for (const CheckpointName& name : history.past) lines.push_back(to_string(name));
  for (const CheckpointName& name : history.left) lines.push_back(to_string(name));
  return lines;
}

std::string of_a_left_branch(FileSystem& disk, const std::string& root, const std::string& used) {
  const Latest latest = read_latest(disk, root);
  const auto name = parse_name(used);
  if (!latest.name || !name) return "";
  const History history = read_history(disk, root, list_checkpoints(disk, root), *latest.name);
  const bool left = std::find(history.left.begin(), history.left.end(), *name) != history.left.end();
  return left ? base::concat(used, " belongs to a branch that ", to_string(*latest.name), " does not continue") : "";
}

}  // namespace

Found open_newest(FileSystem& disk, const std::string& root, Exchange& exchange) {
  Found found;
  const auto try_all = [&](const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      if (line[0] == '!') {
        found.problems.push_back(line.substr(1));
        continue;
      }
      std::string problem;
      found.reader = open_together(disk, join_path(root, line), exchange, problem);
      if (found.reader != nullptr) return line;
      found.problems.push_back(problem);
    }
    return std::string();
  };
  if (!try_all(lines_of_rank_0(exchange, [&] { return first_candidates(disk, root); })).empty()) return found;
  const std::string used = try_all(lines_of_rank_0(exchange, [&] { return later_candidates(disk, root); }));
  if (found.reader != nullptr) {
    const auto notes = lines_of_rank_0(exchange, [&] {
      const std::string note = of_a_left_branch(disk, root, used);
      return note.empty() ? std::vector<std::string>{} : std::vector<std::string>{note};
    });
    found.problems.insert(found.problems.end(), notes.begin(), notes.end());
    return found;
  }
  std::string reasons;
  for (const std::string& problem : found.problems) reasons += "\n  " + problem;
  MPX_CHECK(found.problems.empty(), "checkpoint", "no intact checkpoint is left in '", root, "':", reasons,
            "\nchoose another checkpoint.load, or move the folder away to start a new run");
  found.others = lines_of_rank_0(exchange, [&] { return other_entries(disk, root); });
  return found;
}

std::unique_ptr<Reader> open_iteration(FileSystem& disk, const std::string& root, int64_t iteration,
                                       Exchange& exchange) {
  const auto lines = lines_of_rank_0(exchange, [&] {
    std::string there, chosen;
    for (const CheckpointName& name : list_checkpoints(disk, root)) {
      if (name.iteration == iteration) chosen = to_string(name);
      there += (there.empty() ? "" : ", ") + std::to_string(name.iteration);
    }
    MPX_CHECK(!chosen.empty(), "checkpoint", "'", root, "' has no checkpoint of iteration ", iteration, "; it has ",
              there.empty() ? "none" : there);
    return std::vector<std::string>{chosen};
  });
  std::string problem;
  auto reader = open_together(disk, join_path(root, lines.at(0)), exchange, problem);
  MPX_CHECK(reader != nullptr, "checkpoint", problem,
            "; choose another iteration, or none to use the newest intact one");
  return reader;
}

Found open_path(FileSystem& disk, const std::string& path, int64_t iteration, Exchange& exchange) {
  const auto kind = lines_of_rank_0(exchange, [&] {
    MPX_CHECK(!disk.exists(path) || disk.is_directory(path), "checkpoint", "'", path,
              "' is a file; name a folder of checkpoints, or one of them");
    refuse_foreign(disk, path);
    return std::vector<std::string>{disk.exists(join_path(path, files::kManifestName)) ? "one" : "folder"};
  });
  Found found;
  if (kind.at(0) == "folder" && iteration == 0) return open_newest(disk, path, exchange);
  if (kind.at(0) == "folder") {
    found.reader = open_iteration(disk, path, iteration, exchange);
    return found;
  }
  std::string problem;
  found.reader = open_together(disk, path, exchange, problem);
  MPX_CHECK(found.reader != nullptr, "checkpoint", problem);
  MPX_CHECK(iteration == 0 || found.reader->manifest().iteration == iteration, "checkpoint", "'", path,
            "' has iteration ", found.reader->manifest().iteration, ", not ", iteration);
  return found;
}

}  // namespace metroplex::checkpoint

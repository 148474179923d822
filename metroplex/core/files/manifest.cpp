#include "files/manifest.h"

#include <algorithm>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "files/json_text.h"

namespace metroplex::files {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Parsed = nlohmann::json;

const std::string_view kSumBegin = "{\"checksum\":\"", kSumEnd = "\",\n";
constexpr size_t kHexDigits = 32;
constexpr size_t kMaxDims = 16;

OrderedJson piece_json(const ManifestPiece& piece, int64_t elements) {
  OrderedJson json{{"offset", piece.offset}, {"size", piece.size}};
  if (piece.begin != 0 || piece.end != elements) json["range"] = {piece.begin, piece.end};
  json["file"] = piece.file;
  json["key"] = piece.key;
  json["checksum"] = to_hex(piece.checksum);
  return json;
}

std::string head(const Manifest& manifest) {
  OrderedJson extra;
  try {
    extra = OrderedJson::parse(manifest.extra);
  } catch (const OrderedJson::exception& error) {
    base::throw_error("files", base::concat("the extra state of a checkpoint is not JSON: ", error.what()));
  }
  OrderedJson json{{"format", "metroplex checkpoint"},
                   {"version", kManifestVersion},
                   {"iteration", manifest.iteration},
                   {"consumed_samples", manifest.consumed_samples}};
  if (manifest.parent) json["parent"] = *manifest.parent;
  json["config"] = manifest.config_yaml;
  json["extra"] = extra;
  std::string text = json.dump();
  text.pop_back();
  return text.substr(1);
}

Checksum json_checksum(const Parsed& object, const std::string& what) {
  Checksum sum;
  const std::string& text = json_string(object, "checksum", what);
  MPX_CHECK(from_hex(text, sum), "files", what, ": '", printable(text),
            "' is not a checksum (32 lowercase hexadecimal digits)");
  return sum;
}

ManifestPiece parse_piece(const Parsed& json, const ManifestTensor& tensor, const std::string& what) {
  ManifestPiece piece;
  piece.offset = json_counts(json, "offset", what);
  piece.size = json_counts(json, "size", what);
  const size_t dims = tensor.shape.size();
  MPX_CHECK(piece.offset.size() == dims && piece.size.size() == dims, "files", what, " has ", piece.offset.size(),
            " offsets and ", piece.size.size(), " sizes, but the tensor has ", dims, " dimensions");
  for (size_t d = 0; d < dims; ++d) {
    MPX_CHECK(piece.offset[d] <= tensor.shape[d] && piece.size[d] <= tensor.shape[d] - piece.offset[d], "files", what,
              " takes ", piece.size[d], " elements from offset ", piece.offset[d], " in dimension ", d,
              ", which has ", tensor.shape[d]);
  }
  const int64_t elements = element_count(piece.size);
  MPX_ASSERT(elements >= 0, "a part of a tensor is larger than the tensor");
  piece.end = elements;
  if (json.contains("range")) {
    const auto range = json_counts(json, "range", what);
    MPX_CHECK(range.size() == 2 && range[0] <= range[1] && range[1] <= elements, "files", what,
              ": its range must be [begin, end) within its ", elements, " elements");
    piece.begin = range[0];
    piece.end = range[1];
  }
  piece.file = json_count(json, "file", what);
  piece.key = json_string(json, "key", what);
  piece.checksum = json_checksum(json, what);
  return piece;
}

ManifestTensor parse_tensor(const Parsed& json, const Manifest& manifest, const std::string& path) {
  ManifestTensor tensor;
  tensor.name = json_string(json, "name", "a tensor of '" + path + "'");
  tensor.kind = json_string(json, "kind", "a tensor of '" + path + "'");
  const std::string what =
      base::concat("'", path, "', tensor '", printable(tensor.name), "' (", printable(tensor.kind), ")");
  const std::string& dtype = json_string(json, "dtype", what);
  const auto known = dtype_from_name(dtype);
  MPX_CHECK(known.has_value() && dtype_bits(*known) % 8 == 0, "files", what, " has the unknown dtype '",
            printable(dtype), "'");
  tensor.dtype = *known;
  tensor.shape = json_counts(json, "shape", what);
  // Limits bytes, so that later products cannot overflow. A shard is no larger than its tensor.
  constexpr int64_t kMaxBytes = int64_t{1} << 62;
  const int64_t elements = element_count(tensor.shape);
  MPX_CHECK(tensor.shape.size() <= kMaxDims && elements >= 0 && elements <= kMaxBytes / (dtype_bits(*known) / 8),
            "files", what, " has a shape of ", tensor.shape.size(), " dimensions that is too large; at most ",
            kMaxDims, " dimensions and 2^62 bytes");
  for (const Parsed& item : json_array(json, "pieces", what)) {
    ManifestPiece piece = parse_piece(item, tensor, base::concat(what, ", piece ", tensor.pieces.size()));
    MPX_CHECK(piece.file < static_cast<int64_t>(manifest.files.size()), "files", what, " names file ", piece.file,
              ", but the manifest lists ", manifest.files.size());
    tensor.pieces.push_back(std::move(piece));
  }
  return tensor;
}

ManifestFile parse_file(const Parsed& json, const std::string& path) {
  ManifestFile file;
  const std::string what = "a file of '" + path + "'";
  file.name = json_string(json, "name", what);
  const bool plain = !file.name.empty() && file.name[0] != '.' && file.name.find('/') == std::string::npos;
  MPX_CHECK(plain && file.name != kManifestName, "files", what, ": '", printable(file.name),
            "' is not a plain name of a file in the checkpoint's own directory");
  file.bytes = json_count(json, "bytes", what);
  file.checksum = json_checksum(json, what);
  return file;
}

void check_unique(const Manifest& manifest, const std::string& path) {
  std::set<std::string_view> files;
  for (const ManifestFile& file : manifest.files) {
    MPX_CHECK(files.insert(file.name).second, "files", "'", path, "' lists the file '", printable(file.name),
              "' twice");
  }
  std::set<std::pair<std::string_view, std::string_view>> tensors;
  std::set<std::pair<int64_t, std::string_view>> keys;
  for (const ManifestTensor& tensor : manifest.tensors) {
    MPX_CHECK(tensors.emplace(tensor.name, tensor.kind).second, "files", "'", path, "' lists the tensor '",
              printable(tensor.name), "' (", printable(tensor.kind), ") twice");
    for (const ManifestPiece& piece : tensor.pieces) {
      MPX_CHECK(keys.emplace(piece.file, piece.key).second, "files", "'", path, "' uses the key '",
                printable(piece.key), "' of file ", piece.file, " for two pieces");
    }
  }
}

void check_sum(std::string_view text, const std::string& path) {
  const size_t body = kSumBegin.size() + kHexDigits;
  MPX_CHECK(text.size() >= body + kSumEnd.size() && text.starts_with(kSumBegin) &&
                text.substr(body, kSumEnd.size()) == kSumEnd,
            "files", "'", path, "' is not a manifest: it does not start with its checksum");
  Checksum stated;
  MPX_CHECK(from_hex(text.substr(kSumBegin.size(), kHexDigits), stated), "files", "'", path,
            "' is damaged: its checksum is unreadable");
  const std::string_view members = text.substr(body);
  const Checksum found = checksum(members.data(), members.size());
  MPX_CHECK(found == stated, "files", "'", path, "' is damaged: its checksum is ", to_hex(found), ", but it states ",
            to_hex(stated));
}

}  // namespace

int64_t element_count(const std::vector<int64_t>& size) {
  int64_t count = 1;
  bool empty = false;
  for (const int64_t n : size) {
    if (n < 0) return -1;
    empty = empty || n == 0;
  }
  if (empty) return 0;
  for (const int64_t n : size) {
    if (__builtin_mul_overflow(count, n, &count) || count > int64_t{1} << 62) return -1;
  }
  return count;
}

std::string seal_manifest(std::string_view members) {
  const std::string body = std::string(kSumEnd) + std::string(members);
  return std::string(kSumBegin) + to_hex(checksum(body.data(), body.size())) + body;
}

std::string write_manifest(const Manifest& manifest) {
  std::string text = head(manifest) + ",\n\"files\":[";
  for (const ManifestFile& file : manifest.files) {
    text += &file == &manifest.files.front() ? "\n" : ",\n";
    text += OrderedJson{{"name", file.name}, {"bytes", file.bytes}, {"checksum", to_hex(file.checksum)}}.dump();
  }
  text += "],\n\"tensors\":[";
  for (const ManifestTensor& tensor : manifest.tensors) {
    text += &tensor == &manifest.tensors.front() ? "\n" : ",\n";
    OrderedJson json{
        {"name", tensor.name}, {"kind", tensor.kind}, {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}};
    OrderedJson& pieces = json["pieces"] = OrderedJson::array();
    for (const ManifestPiece& piece : tensor.pieces) pieces.push_back(piece_json(piece, element_count(piece.size)));
    text += json.dump();
  }
  return seal_manifest(text + "]}\n");
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  check_sum(text, path);
  const std::string what = "'" + path + "'";
  const Parsed json = parse_json_strictly(text, what);
  const std::string& format = json_string(json, "format", what);
  MPX_CHECK(format == "metroplex checkpoint", "files", what, " is a '", printable(format),
            "', not a 'metroplex checkpoint'");
  const int64_t version = json_count(json, "version", what);
  MPX_CHECK(version == kManifestVersion, "files", what, " has format version ", version,
            "; this program reads version ", kManifestVersion, "; use the program that wrote it, or a newer one");
  Manifest manifest;
  manifest.iteration = json_count(json, "iteration", what);
  manifest.consumed_samples = json_count(json, "consumed_samples", what);
  if (json.contains("parent")) manifest.parent = json_string(json, "parent", what);
  manifest.config_yaml = json_string(json, "config", what);
  manifest.extra = json_member(json, "extra", what).dump();
  for (const Parsed& item : json_array(json, "files", what)) manifest.files.push_back(parse_file(item, path));
  for (const Parsed& item : json_array(json, "tensors", what)) {
    manifest.tensors.push_back(parse_tensor(item, manifest, path));
  }
  check_unique(manifest, path);
  return manifest;
}

}  // namespace metroplex::files

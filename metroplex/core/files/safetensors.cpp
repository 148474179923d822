#include "files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <tuple>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "files/json_text.h"

namespace metroplex::files {
namespace {

using Json = nlohmann::json;
static_assert(std::endian::native == std::endian::little,
              "files are mapped without conversion, so the host must be little-endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the library's limit
constexpr size_t kBufferBytes = size_t{1} << 20;
const char* const kMetadata = "__metadata__";

#define CHECK_FILE(condition, ...) \
  MPX_CHECK(condition, "files", "'", path, "' is not a valid safetensors file: ", __VA_ARGS__)

std::vector<uint64_t> unsigned_list(const Json& json, const std::string& path, const std::string& what) {
  CHECK_FILE(json.is_array(), what, " is of type ", json.type_name(), ", not a list");
  std::vector<uint64_t> values;
  for (const Json& item : json) {
    CHECK_FILE(item.is_number_unsigned(), what, " contains ", shortened(item), ", not a whole number in [0, 2^64)");
    values.push_back(item.get<uint64_t>());
  }
  return values;
}

TensorInfo parse_entry(const std::string& name, const Json& entry, const std::string& path) {
  const std::string what = base::concat("tensor '", printable(name), "'");
  const char* const fields[] = {"dtype", "shape", "data_offsets"};
  const Json* values[3];
  // The library also accepts an entry written as a list of the three values.
  CHECK_FILE(entry.is_object() || (entry.is_array() && entry.size() == 3), what, " is described by ",
             shortened(entry), ", not by an object");
  for (int i = 0; i < 3; ++i) {
    CHECK_FILE(entry.is_array() || entry.contains(fields[i]), what, " has no ", fields[i]);
    values[i] = entry.is_array() ? &entry[i] : &entry[fields[i]];
  }
  TensorInfo tensor;
  tensor.name = name;
  CHECK_FILE(values[0]->is_string(), what, ": dtype is ", shortened(*values[0]), ", not a string");
  const auto dtype = dtype_from_name(values[0]->get_ref<const std::string&>());
  CHECK_FILE(dtype.has_value(), what, " has the unknown dtype ", shortened(*values[0]));
  tensor.dtype = *dtype;
  tensor.shape = unsigned_list(*values[1], path, what + ": shape");
  const auto offsets = unsigned_list(*values[2], path, what + ": data_offsets");
  CHECK_FILE(offsets.size() == 2, what, ": data_offsets has ", offsets.size(), " numbers, not 2");
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  CHECK_FILE(tensor.begin <= tensor.end, what, " ends at ", tensor.end, " before it starts at ", tensor.begin);
  const uint64_t bytes = tensor_bytes(tensor.dtype, tensor.shape, base::concat("'", path, "', ", what));
  CHECK_FILE(bytes == tensor.end - tensor.begin, what, " needs ", bytes,
             " bytes for its dtype and shape, but data_offsets gives ", tensor.end - tensor.begin);
  return tensor;
}

void parse_metadata(const Json& json, const std::string& path, TextPairs& metadata) {
  if (json.is_null()) return;
  CHECK_FILE(json.is_object(), kMetadata, " is ", shortened(json), ", not an object");
  for (const auto& [key, value] : json.items()) {
    CHECK_FILE(value.is_string(), kMetadata, " '", printable(key), "' is ", shortened(value), ", not a string");
    metadata.emplace_back(key, value.get<std::string>());
  }
}

std::string quoted(const std::string& text) { return Json(text).dump(); }

}  // namespace

uint64_t tensor_bytes(Dtype dtype, const std::vector<uint64_t>& shape, const std::string& where) {
  uint64_t elements = 1, bits = 0;
  bool fits = true;
  for (const uint64_t size : shape) fits = fits && !__builtin_mul_overflow(elements, size, &elements);
  fits = fits && !__builtin_mul_overflow(elements, static_cast<uint64_t>(dtype_bits(dtype)), &bits);
  MPX_CHECK(fits, "files", where, ": its size in bits does not fit in 64 bits");
  MPX_CHECK(bits % 8 == 0, "files", where, ": ", elements, " elements of ", dtype_bits(dtype),
            " bits do not fill whole bytes");
  return bits / 8;
}

SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path) {
  CHECK_FILE(file.size() >= 8, "it has ", file.size(), " bytes, but the length of the header alone takes 8");
  uint64_t length;
  std::memcpy(&length, file.data(), 8);
  CHECK_FILE(length <= kMaxHeaderBytes, "its header would have ", length, " bytes, more than ", kMaxHeaderBytes);
  CHECK_FILE(length <= file.size() - 8, "its header would have ", length, " bytes, but the file has ", file.size());
  const std::string_view text = file.substr(8, length);
  CHECK_FILE(!text.empty() && text[0] == '{', "its header does not start with '{'");
  const Json json = parse_json_strictly(text, "the header of '" + path + "'");

  SafetensorsHeader header;
  header.data_begin = 8 + length;
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadata) {
      parse_metadata(entry, path, header.metadata);
    } else {
      header.tensors.push_back(parse_entry(name, entry, path));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t end = 0;
  for (const TensorInfo& tensor : header.tensors) {
    CHECK_FILE(tensor.begin == end, "tensor '", printable(tensor.name), "' starts at ", tensor.begin,
               ", but the previous one ends at ", end);
    end = tensor.end;
  }
  const uint64_t data_bytes = file.size() - header.data_begin;
  CHECK_FILE(end == data_bytes, "its tensors end at ", end, ", but its data has ", data_bytes, " bytes");
  return header;
}

SafetensorsFile::SafetensorsFile(Bytes bytes, std::string path)
    : bytes_(std::move(bytes)), path_(std::move(path)), header_(parse_safetensors(bytes_.text(), path_)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &header_.tensors[it->second];
}

void order_tensors(std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  std::set<std::string_view> names;
  uint64_t end = 0;
  for (TensorInfo& tensor : tensors) {
    MPX_CHECK(names.insert(tensor.name).second && tensor.name != kMetadata, "files",
              "a safetensors file cannot contain two tensors named '", printable(tensor.name), "'");
    tensor.begin = end;
    const uint64_t bytes = tensor_bytes(tensor.dtype, tensor.shape, "tensor '" + printable(tensor.name) + "'");
    MPX_CHECK(!__builtin_add_overflow(end, bytes, &end), "files", "the sizes of the tensors do not fit in 64 bits");
    tensor.end = end;
  }
}

std::string safetensors_header(const std::vector<TensorInfo>& tensors, const TextPairs& metadata) {
  std::string text = "{";
  const auto comma = [&] {
    if (text.size() > 1) text += ',';
  };
  if (!metadata.empty()) {
    text += base::concat('"', kMetadata, "\":{");
    for (size_t i = 0; i < metadata.size(); ++i) {
      text += (i == 0 ? "" : ",") + quoted(metadata[i].first) + ":" + quoted(metadata[i].second);
    }
    text += '}';
  }
  for (const TensorInfo& tensor : tensors) {
    comma();
    text += base::concat(quoted(tensor.name), ":{\"dtype\":\"", dtype_name(tensor.dtype), "\",\"shape\":[");
    for (size_t i = 0; i < tensor.shape.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(tensor.shape[i]);
    text += base::concat("],\"data_offsets\":[", tensor.begin, ',', tensor.end, "]}");
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  MPX_CHECK(text.size() <= kMaxHeaderBytes, "files", "the header of a safetensors file would have ", text.size(),
            " bytes, more than ", kMaxHeaderBytes, "; put fewer tensors into one file");
  const uint64_t length = text.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + text;
}

SafetensorsWriter::SafetensorsWriter(FileSystem& file_system, const std::string& path,
                                     std::vector<TensorInfo> tensors, const TextPairs& metadata)
    : path_(path) {
  const std::string header = safetensors_header(tensors, metadata);
  expected_ = header.size() + (tensors.empty() ? 0 : tensors.back().end);
  file_ = file_system.create(path);
  buffer_.reserve(kBufferBytes);
  write(header.data(), header.size());
}

void SafetensorsWriter::write(const void* data, size_t size) {
  written_ += size;
  MPX_ASSERT(written_ <= expected_, "'", path_, "' receives ", written_, " bytes; expected ", expected_);
  sum_.add(data, size);
  const bool direct = size >= kBufferBytes / 4;
  if (direct || buffer_.size() + size > kBufferBytes) flush();
  if (direct) {
    file_->write(data, size);
  } else {
    const char* const bytes = static_cast<const char*>(data);
    buffer_.insert(buffer_.end(), bytes, bytes + size);
  }
}

void SafetensorsWriter::flush() {
  if (!buffer_.empty()) file_->write(buffer_.data(), buffer_.size());
  buffer_.clear();
}

WrittenFile SafetensorsWriter::finish() {
  MPX_ASSERT(written_ == expected_, "'", path_, "' received ", written_, " bytes; expected ", expected_);
  flush();
  file_->sync();
  file_->close();
  return {written_, sum_.sum()};
}

}  // namespace metroplex::files

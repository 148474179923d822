// Safetensors, read and written as the format's own library (0.8) does:
//   u64 little-endian header length | JSON header, padded with spaces to 8 bytes | data
// The header maps a name to {"dtype", "shape", "data_offsets": [begin, end)} inside the data, which the tensors cover
// without hole or overlap; "__metadata__" maps strings to strings. Every rule is checked before a byte of data is
// used. Stricter than the library in two points that the format's text forbids: a name given twice, space before the
// brace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "files/checksum.h"
#include "files/dtype.h"
#include "files/file_system.h"

namespace metroplex::files {

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data section
};

using TextPairs = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // by begin, then end
  TextPairs metadata;               // by key
  uint64_t data_begin = 0;          // bytes, from the start of the file
};

// Bytes of a tensor; throws base::Error when they do not fit 64 bits or end inside a byte (4- and 6-bit types).
// `where` names the tensor in the message.
uint64_t tensor_bytes(Dtype dtype, const std::vector<uint64_t>& shape, const std::string& where);

// Checks the whole file. `path` is for messages only. Throws base::Error naming file, tensor and broken rule.
SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path);

class SafetensorsFile {
 public:
  SafetensorsFile(Bytes bytes, std::string path);

  const std::string& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const TextPairs& metadata() const { return header_.metadata; }
  // nullptr when the file has no tensor of this name.
  const TensorInfo* find(const std::string& name) const;
  // Valid while this object (or the Bytes' owner) lives. Any alignment is possible.
  const std::byte* data(const TensorInfo& tensor) const { return bytes_.data + header_.data_begin + tensor.begin; }

 private:
  Bytes bytes_;
  std::string path_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> by_name_;
};

// The order in which the library writes: dtype from the last to the first of the enum, then name. Large elements come
// first, so every tensor is aligned. begin and end are filled in. Throws when a name appears twice.
void order_tensors(std::vector<TensorInfo>& tensors);

// Length field and header, as the library writes them for tensors in this order (metadata in the order given).
std::string safetensors_header(const std::vector<TensorInfo>& tensors, const TextPairs& metadata);

struct WrittenFile {
  uint64_t bytes = 0;
  Checksum checksum;  // of the whole file
};

// Writes a file as a stream: the tensors (in the order of order_tensors) are announced, then their bytes follow.
class SafetensorsWriter {
 public:
  // `tensors` ordered, with begin and end.
  SafetensorsWriter(FileSystem& file_system, const std::string& path, std::vector<TensorInfo> tensors,
                    const TextPairs& metadata);
  // All bytes of the next tensor, or a part of them.
  void write(const void* data, size_t size);
  // Every announced byte must have come. Syncs and closes.
  WrittenFile finish();

 private:
  void flush();

  std::unique_ptr<WritableFile> file_;
  std::string path_;
  uint64_t expected_ = 0, written_ = 0;
  std::vector<char> buffer_;
  ChecksumStream sum_;
};

}  // namespace metroplex::files

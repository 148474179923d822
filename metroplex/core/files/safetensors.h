// Safetensors files, read and written like the format's own library (0.8):
//   u64 little-endian header length | JSON header, padded with spaces to 8 bytes | data
// The header maps a name to {"dtype", "shape", "data_offsets": [begin, end)} within the data. The tensors must
// cover the data without gaps or overlaps. "__metadata__" maps strings to strings. Every rule is checked before
// any data is used. The reader rejects two violations that the library accepts: duplicate names, and space before
// the brace.
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
  uint64_t begin = 0, end = 0;  // bytes from the start of the data section
};

using TextPairs = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // sorted by begin, then end
  TextPairs metadata;               // sorted by key
  uint64_t data_begin = 0;          // bytes from the start of the file
};

// Returns the bytes of a tensor. Throws base::Error if they exceed 64 bits or end within a byte (4- and 6-bit types).
// `where` is the tensor's name in the message.
uint64_t tensor_bytes(Dtype dtype, const std::vector<uint64_t>& shape, const std::string& where);

// Checks the full file. `path` is used in messages. Throws base::Error with file, tensor and violated rule.
SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path);

class SafetensorsFile {
 public:
  SafetensorsFile(Bytes bytes, std::string path);

  const std::string& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const TextPairs& metadata() const { return header_.metadata; }
  // Returns nullptr if there is no such tensor.
  const TensorInfo* find(const std::string& name) const;
  // Valid while this object (or the Bytes' owner) lives. The alignment is arbitrary.
  const std::byte* data(const TensorInfo& tensor) const { return bytes_.data + header_.data_begin + tensor.begin; }

 private:
  Bytes bytes_;
  std::string path_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> by_name_;
};

// Sorts in the library's write order: dtype from last to first enumerator, then name. Large elements come first, so
// every tensor is aligned. Sets begin and end. Throws for duplicate names.
void order_tensors(std::vector<TensorInfo>& tensors);

// Returns length field and header, as the library writes them for tensors in this order. Keeps the order of metadata.
std::string safetensors_header(const std::vector<TensorInfo>& tensors, const TextPairs& metadata);

struct WrittenFile {
  uint64_t bytes = 0;
  Checksum checksum;
};

// Writes a file as a stream: first the header for all tensors (in order_tensors order), then their bytes.
class SafetensorsWriter {
 public:
  // `tensors` must be sorted, with begin and end set.
  SafetensorsWriter(FileSystem& file_system, const std::string& path, std::vector<TensorInfo> tensors,
                    const TextPairs& metadata);
  // Writes the bytes of the next tensor, or a part of them.
  void write(const void* data, size_t size);
  // Requires that all bytes have been written. Syncs and closes the file.
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

// Files of torch.save since PyTorch 1.6: a zip archive with the pickle data.pkl and one entry data/N per storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/dtype.h"
#include "files/file_system.h"
#include "pickle/archive.h"
#include "pickle/value.h"
#include "pickle/value_writer.h"

namespace metroplex::pickle {

// The dtype of a global such as "torch.bfloat16"; nothing for another value or a dtype that safetensors files lack.
std::optional<files::Dtype> find_dtype(const Value& value);

struct Tensor {
  files::Dtype dtype = files::Dtype::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  // contiguous
};

class TorchFile {
 public:
  // Reads the bytes [offset, offset + size) of a file. Throws base::Error("pickle") with the file and the problem.
  TorchFile(files::Bytes file, const std::string& path, uint64_t offset, uint64_t size);
  TorchFile(files::Bytes file, const std::string& path) : TorchFile(file, path, 0, file.size) {}

  const Document& document() const { return *document_; }
  // Whether a value is a tensor or a parameter.
  static bool is_tensor(const Value& value);
  // Throws base::Error for other values, for tensors that are not contiguous, and for storages that are too small.
  Tensor tensor(const Value& value) const;
  // Throws base::Error if the checksum of an entry is wrong.
  void verify() const;

 private:
  struct Storage {
    std::string_view data;
    uint32_t crc32 = 0;
  };
  files::Bytes file_;
  std::string path_;
  std::map<std::string_view, Storage> entries_;  // without the archive's folder: "data/0"
  std::unique_ptr<Document> document_;
};

// The functions below write what torch.save writes. They return the size of the file in bytes.

// Writes a file without tensors. `pickle`: of ValueWriter::take. `folder`: of the archive's entries.
uint64_t write_torch_file(const Sink& sink, const std::string& folder, std::string_view pickle);
// Writes a file that is one tensor. `produce` passes its contiguous bytes to the sink that it receives.
uint64_t write_tensor_file(const Sink& sink, files::Dtype dtype, const std::vector<int64_t>& shape,
                           const std::function<void(const Sink&)>& produce);
// Writes the name of a dtype, such as torch.bfloat16. Throws base::Error for a dtype that PyTorch lacks.
void write_dtype(ValueWriter& writer, files::Dtype dtype);

}  // namespace metroplex::pickle

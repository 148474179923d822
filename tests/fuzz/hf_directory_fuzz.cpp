// libFuzzer entry: any bytes as a Hugging Face directory: config.json, model.safetensors.index.json (none if empty)
// and one weight file, with a NUL after the first two. An accepted model is read completely.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/load.h"
#include "config/validate.h"
#include "files/memory_file_system.h"
#include "hf/directory.h"

namespace {

using namespace metroplex;

void read_all(files::FileSystem& disk) {
  config::Config config = config::load("", hf::read_settings(disk, "/d"));
  config.data.mock_data = true;
  config::check(config, 1, config::Use::evaluation);
  hf::Source source(disk, "/d", config::resolved(config, 1).model);
  for (const files::TensorForm& tensor : source.tensors()) {
    std::vector<char> whole(
        static_cast<size_t>(files::element_count(tensor.shape) * files::dtype_bits(tensor.dtype) / 8));
    source.fill({tensor.name, tensor.kind, tensor.shape, std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape,
                 tensor.dtype, whole.data()});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto part = [&] {
    const size_t end = std::min(rest.find('\0'), rest.size());
    const std::string_view text = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return text;
  };
  files::MemoryFileSystem disk;
  disk.make_directories("/d");
  disk.create("/d/config.json")->write(part());
  const std::string_view index = part();
  if (!index.empty()) disk.create("/d/model.safetensors.index.json")->write(index);
  disk.create(index.empty() ? "/d/model.safetensors" : "/d/a.safetensors")->write(rest);
  try {
    read_all(disk);
  } catch (const base::Error&) {}
  return 0;
}

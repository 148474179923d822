// libFuzzer entry: any bytes as a safetensors file. It is read or rejected with base::Error, nothing else.
#include <string>

#include "base/error.h"
#include "files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace metroplex;
  try {
    const files::SafetensorsFile file({reinterpret_cast<const std::byte*>(data), size, nullptr}, "fuzz");
    unsigned sum = 0;
    for (const files::TensorInfo& tensor : file.tensors()) {
      for (uint64_t i = 0; i < tensor.end - tensor.begin; ++i) sum += static_cast<unsigned>(file.data(tensor)[i]);
    }
    return sum == 0xffffffffu ? -1 : 0;
  } catch (const base::Error&) { return 0; }
}

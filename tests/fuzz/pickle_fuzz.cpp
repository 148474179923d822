// libFuzzer entry: any bytes as a file of torch.save, and as a pickle. Each is read or rejected with base::Error.
#include <functional>
#include <string_view>

#include "base/error.h"
#include "pickle/torch_file.h"

using namespace metroplex;

static unsigned read_tensors(const pickle::TorchFile& file) {
  const pickle::Document& document = file.document();
  const pickle::Value* const model = document.find(document.root(), "model");
  const pickle::Value& values = model == nullptr ? document.root() : *model;
  unsigned sum = 0;
  const auto& pairs = document.pairs(values, "model");
  for (size_t i = 1; i < pairs.size(); i += 2) {
    if (!pickle::TorchFile::is_tensor(*pairs[i])) continue;
    const pickle::Tensor tensor = file.tensor(*pairs[i]);
    int64_t bytes = files::dtype_bits(tensor.dtype) / 8;
    for (const int64_t size : tensor.shape) bytes *= size;
    for (int64_t n = 0; n < bytes; ++n) sum += static_cast<unsigned>(tensor.data[n]);
  }
  return sum;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  unsigned sum = 0;
  const auto attempt = [](const std::function<void()>& read) {
    try {
      read();
    } catch (const base::Error&) {}
  };
  attempt([&] {
    const pickle::TorchFile file({reinterpret_cast<const std::byte*>(data), size, nullptr}, "fuzz");
    sum += read_tensors(file);
    file.verify();
  });
  attempt([&] {
    const pickle::Document document({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (const auto* found = document.find(document.root(), "state_dict_metadata"))
      sum += document.pairs(*found, "x").size();
  });
  return sum == 0xffffffffu ? -1 : 0;
}

// Any bytes as PREFIX.idx and PREFIX.bin: the first two bytes are the length of the index, the rest are the tokens.
#include <cstddef>
#include <cstdint>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/error.h"
#include "files/indexed_dataset.h"
#include "files/npy.h"

namespace {

// A separate copy of exactly these bytes, so that a read past their end is detected.
metroplex::files::Bytes copy_bytes(const uint8_t* data, size_t size) {
  auto owner = std::make_shared<const std::vector<std::byte>>(reinterpret_cast<const std::byte*>(data),
                                                              reinterpret_cast<const std::byte*>(data) + size);
  return {owner->data(), size, owner};
}

void read_all(const metroplex::files::IndexedDataset& dataset) {
  std::vector<double> values;
  for (int64_t i = 0; i < dataset.num_sequences(); ++i) {
    values.resize(static_cast<size_t>(dataset.length(i)));
    dataset.read(i, 0, dataset.length(i), values.data());
    if (dataset.mode(i) != 0 && !dataset.has_modes()) std::abort();
  }
  for (int64_t i = 0; i < dataset.num_documents(); ++i) {
    if (dataset.document_begin(i) > dataset.document_begin(i + 1)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const size_t index_bytes = std::min<size_t>(data[0] + 256u * data[1], size - 2);
  try {
    read_all({copy_bytes(data + 2, index_bytes), copy_bytes(data + 2 + index_bytes, size - 2 - index_bytes), "fuzz"});
  } catch (const metroplex::base::Error&) {}
  try {
    metroplex::files::parse_npy(copy_bytes(data + 2, size - 2), "fuzz");
  } catch (const metroplex::base::Error&) {}
  return 0;
}
